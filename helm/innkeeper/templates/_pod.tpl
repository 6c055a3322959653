{{- /* A role's configuration file. Takes (dict "root" $ "role" "router"). Keys that the chart itself decides are no
settings of `settings`: the schema refuses them there. */ -}}
{{- define "innkeeper.toml" -}}
{{- $v := .root.Values -}}
{{- $w := index $v .role -}}
{{- $all := mustMergeOverwrite (deepCopy $v.settings) (deepCopy $w.settings) -}}
{{- $_ := set $all "drain-timeout-ms" (mul (int $w.drainTimeoutSeconds) 1000) -}}
{{- $_ := set $all "engine" $v.engine.kind -}}
{{- if eq $v.engine.kind "embedded" -}}
{{- $_ := set $all "model" (ternary (printf "/models/%s" $v.model.file) $v.model.huggingFace (not (empty $v.model.file))) -}}
{{- end -}}
{{- if include "innkeeper.nextDoor" (dict "root" .root) -}}
{{- $_ := set $all "served-model-name" (include "innkeeper.servedName" .root) -}}
{{- if eq .role "router" -}}
{{- $_ := set $all "model" (printf "/models/%s" $v.model.folder) -}}
{{- else -}}
{{- $_ := set $all "engine-url" (list (printf "http://127.0.0.1:%d" (int $w.engine.port))) -}}
{{- $_ := set $all "engine-restart" $v.engine.restart -}}
{{- $_ := set $all "engine-kv-lease" (int $v.engine.kvLeaseSeconds) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $all "log" $v.telemetry.log -}}
{{- $_ := set $all "log-format" $v.telemetry.logFormat -}}
{{- if $v.telemetry.otlp.endpoint -}}
{{- $_ := set $all "otlp" $v.telemetry.otlp.endpoint -}}
{{- $_ := set $all "otlp-protocol" $v.telemetry.otlp.protocol -}}
{{- $_ := set $all "trace-ratio" $v.telemetry.otlp.ratio -}}
{{- end -}}
{{- if $v.telemetry.jaegerUrl -}}
{{- $_ := set $all "jaeger-url" $v.telemetry.jaegerUrl -}}
{{- end -}}
{{- $_ := set $all "etcd" (include "innkeeper.etcdEndpoints" .root | fromJsonArray) -}}
{{- if $v.etcd.tls.existingSecret -}}
{{- $_ := set $all "etcd-ca" (printf "/etc/innkeeper/etcd/%s" $v.etcd.tls.caKey) -}}
{{- if $v.etcd.tls.certKey -}}
{{- $_ := set $all "etcd-cert" (printf "/etc/innkeeper/etcd/%s" $v.etcd.tls.certKey) -}}
{{- $_ := set $all "etcd-key" (printf "/etc/innkeeper/etcd/%s" $v.etcd.tls.keyKey) -}}
{{- end -}}
{{- end -}}
{{- if $v.nodeTls.existingSecret -}}
{{- $_ := set $all "node-cert" (printf "/etc/innkeeper/node/%s" $v.nodeTls.certKey) -}}
{{- $_ := set $all "node-key" (printf "/etc/innkeeper/node/%s" $v.nodeTls.keyKey) -}}
{{- $_ := set $all "node-ca" (printf "/etc/innkeeper/node/%s" $v.nodeTls.caKey) -}}
{{- end -}}
{{- if eq .role "router" -}}
{{- with $w.apiKeys -}}{{- if .existingSecret -}}
{{- $_ := set $all "api-keys-file" (printf "/etc/innkeeper/keys/%s" .key) -}}
{{- end -}}{{- end -}}
{{- with $w.tls -}}{{- if .existingSecret -}}
{{- $_ := set $all "tls-cert" (printf "/etc/innkeeper/tls/%s" .certKey) -}}
{{- $_ := set $all "tls-key" (printf "/etc/innkeeper/tls/%s" .keyKey) -}}
{{- end -}}{{- end -}}
{{- end -}}
{{- range $key, $value := $all }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{ end -}}

{{- define "innkeeper.probe" -}}
{{- if eq .protocol "grpc" -}}
grpc: {port: 7100, service: {{ .service }}}
{{- else -}}
httpGet: {path: {{ ternary "/ready" "/health" (eq .service "readiness") }}, port: http{{ if .tls }}, scheme: HTTPS{{ end }}}
{{- end -}}
{{- end -}}

{{- define "innkeeper.probes" -}}
{{- $p := deepCopy .workload.probes -}}
{{- /* The kubelet shows no certificate of a node. */ -}}
{{- if .root.Values.nodeTls.existingSecret -}}{{- $_ := set $p "protocol" "http" -}}{{- end -}}
{{- $tls := and (eq .role "router") (not (empty (.workload.tls | default dict).existingSecret)) -}}
{{- $ready := "readiness" -}}
{{- if and (eq .role "router") (not .workload.readinessNeedsWorkers) -}}{{- $ready = "liveness" -}}{{- end -}}
startupProbe:
  {{- include "innkeeper.probe" (dict "protocol" $p.protocol "service" "liveness" "tls" $tls) | nindent 2 }}
  periodSeconds: 2
  timeoutSeconds: {{ $p.timeoutSeconds }}
  failureThreshold: {{ div (add (int .workload.startupBudgetSeconds) 1) 2 }}
readinessProbe:
  {{- include "innkeeper.probe" (dict "protocol" $p.protocol "service" $ready "tls" $tls) | nindent 2 }}
  periodSeconds: {{ $p.periodSeconds }}
  timeoutSeconds: {{ $p.timeoutSeconds }}
  failureThreshold: {{ $p.readinessFailures }}
livenessProbe:
  {{- include "innkeeper.probe" (dict "protocol" $p.protocol "service" "liveness" "tls" $tls) | nindent 2 }}
  periodSeconds: {{ $p.periodSeconds }}
  timeoutSeconds: {{ $p.timeoutSeconds }}
  failureThreshold: {{ $p.livenessFailures }}
{{- end -}}

{{- define "innkeeper.env" -}}
{{- $v := .root.Values -}}
- name: INNKEEPER_CONFIG
  value: /etc/innkeeper/config/innkeeper.toml
# Not in the file: an old pod whose container starts again reads the new file.
- name: INNKEEPER_REVISION
  value: {{ include "innkeeper.revision" .root | quote }}
- name: INNKEEPER_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: INNKEEPER_ADVERTISE_HOST
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: INNKEEPER_HTTP
  value: {{ include "innkeeper.listen" (dict "host" $v.listenAddress "port" 8080) | quote }}
- name: INNKEEPER_CONTROL
  value: {{ include "innkeeper.listen" (dict "host" $v.listenAddress "port" 7100) | quote }}
{{- if eq .role "decode" }}
- name: INNKEEPER_DATA
  value: {{ include "innkeeper.listen" (dict "host" $v.listenAddress "port" 7200) | quote }}
{{- end }}
- name: INNKEEPER_CACHE
  value: /var/cache/innkeeper
- name: INNKEEPER_RECORDER_DIR
  value: /var/lib/innkeeper
{{- with $v.etcd.auth }}
{{- if .existingSecret }}
- name: INNKEEPER_ETCD_USER
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .usernameKey }}}}
- name: INNKEEPER_ETCD_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .passwordKey }}}}
{{- end }}
{{- end }}
{{- with $v.telemetry.otlp.headers }}
{{- if .existingSecret }}
- name: INNKEEPER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with .workload.adminKey }}
{{- if .existingSecret }}
- name: INNKEEPER_ADMIN_KEY
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with .workload.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "innkeeper.modelMount" -}}
{{- $volume := .Values.model.volume -}}
{{- if or $volume.existingClaim $volume.source -}}
- name: models
  mountPath: /models
  readOnly: true
  {{- with $volume.subPath }}
  subPath: {{ . | quote }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- define "innkeeper.mounts" -}}
{{- $v := .root.Values -}}
- {name: config, mountPath: /etc/innkeeper/config, readOnly: true}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /var/cache/innkeeper}
- {name: recorder, mountPath: /var/lib/innkeeper}
{{- if $v.etcd.tls.existingSecret }}
- {name: etcd-tls, mountPath: /etc/innkeeper/etcd, readOnly: true}
{{- end }}
{{- if $v.nodeTls.existingSecret }}
- {name: node-tls, mountPath: /etc/innkeeper/node, readOnly: true}
{{- end }}
{{- if (.workload.apiKeys | default dict).existingSecret }}
- {name: api-keys, mountPath: /etc/innkeeper/keys, readOnly: true}
{{- end }}
{{- if (.workload.tls | default dict).existingSecret }}
- {name: tls, mountPath: /etc/innkeeper/tls, readOnly: true}
{{- end }}
{{- with include "innkeeper.modelMount" .root }}
{{ . }}
{{- end }}
{{- if and (.workload.sharedMemory | default dict).enabled (not (include "innkeeper.nextDoor" .)) }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
{{- with .workload.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "innkeeper.volumes" -}}
{{- $v := .root.Values -}}
- name: config
  configMap:
    name: {{ include "innkeeper.fullname" .root }}-{{ .role }}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
- name: recorder
  emptyDir: {sizeLimit: {{ $v.recorder.sizeLimit }}}
- name: cache
  {{- if $v.model.cache.existingClaim }}
  persistentVolumeClaim: {claimName: {{ $v.model.cache.existingClaim }}}
  {{- else }}
  emptyDir: {sizeLimit: {{ $v.model.cache.sizeLimit }}}
  {{- end }}
{{- with $v.etcd.tls.existingSecret }}
- name: etcd-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with $v.nodeTls.existingSecret }}
- name: node-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with (.workload.apiKeys | default dict).existingSecret }}
- name: api-keys
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with (.workload.tls | default dict).existingSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with $v.model.volume }}
{{- if .existingClaim }}
- name: models
  persistentVolumeClaim: {claimName: {{ .existingClaim }}, readOnly: true}
{{- else if .source }}
- name: models
  {{- toYaml .source | nindent 2 }}
{{- end }}
{{- end }}
{{- if include "innkeeper.nextDoor" . }}
{{ include "innkeeper.engineVolumes" . }}
{{- else if (.workload.sharedMemory | default dict).enabled }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .workload.sharedMemory.sizeLimit }}}
{{- end }}
{{- with .workload.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "innkeeper.resources" -}}
{{- $resources := deepCopy (.resources | default dict) -}}
{{- with .gpu -}}
{{- if gt (int .count) 0 -}}
{{- $limits := merge (dict .resourceName (toString .count)) ($resources.limits | default dict) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{- /* Where and under whom pods run. */ -}}
{{- define "innkeeper.placement" -}}
{{- $w := .workload -}}
{{- if kindIs "invalid" $w.topologySpreadConstraints }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "innkeeper.selector" (dict "root" .root "component" .role) | nindent 8 }}
{{- else if $w.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- tpl (toYaml $w.topologySpreadConstraints) .root | nindent 2 }}
{{- end }}
{{- with $w.affinity }}
affinity:
  {{- tpl (toYaml .) $.root | nindent 2 }}
{{- end }}
{{- with $w.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $w.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $w.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $w.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with $w.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "innkeeper.template" -}}
{{- $v := .root.Values -}}
{{- $w := .workload -}}
metadata:
  annotations:
    checksum/config: {{ include "innkeeper.toml" . | sha256sum }}
    {{- with $w.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  labels:
    # Nothing that only the chart's version changes: pods need not start again for it.
    {{- include "innkeeper.selector" (dict "root" .root "component" .role) | nindent 4 }}
    {{- with $v.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    innkeeper/revision: {{ include "innkeeper.revision" .root | quote }}
    {{- with $w.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "innkeeper.serviceAccount" .root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "innkeeper.grace" . }}
  securityContext:
    {{- toYaml $v.podSecurityContext | nindent 4 }}
  {{- with $v.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- include "innkeeper.placement" . | trim | nindent 2 }}
  {{- if include "innkeeper.nextDoor" . }}
  initContainers:
    {{- include "innkeeper.engine" . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .role }}
      image: {{ include "innkeeper.image" .root }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      args: [node, {{ .role }}]
      ports:
        - {name: http, containerPort: 8080}
        - {name: control, containerPort: 7100}
        {{- if eq .role "decode" }}
        - {name: data, containerPort: 7200}
        {{- end }}
      env:
        {{- include "innkeeper.env" . | nindent 8 }}
      {{- include "innkeeper.probes" . | nindent 6 }}
      {{- if gt (int $w.preStopSeconds) 0 }}
      lifecycle:
        preStop: {sleep: {seconds: {{ $w.preStopSeconds }}}}
      {{- end }}
      resources:
        {{- /* GPUs are the engine's, wherever it is. */ -}}
        {{- include "innkeeper.resources" (ternary (omit $w "gpu") $w (not (empty (include "innkeeper.nextDoor" .)))) | nindent 8 }}
      securityContext:
        {{- toYaml $v.securityContext | nindent 8 }}
      volumeMounts:
        {{- include "innkeeper.mounts" . | nindent 8 }}
  volumes:
    {{- include "innkeeper.volumes" . | nindent 4 }}
{{- end -}}
