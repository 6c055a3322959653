{{- /* Engines that others make, in a container beside each worker. What all of them have in common is here; what one kind needs
is in templates with its name, such as `innkeeper.engine.vllm.args`. Takes (dict "root" $ "role" "prefill" "workload" …). */ -}}

{{- /* Not empty if the engine is a process of its own: without `role` at all, with it in the pods of that role. */ -}}
{{- define "innkeeper.nextDoor" -}}
{{- if and (has .root.Values.engine.kind (list "vllm")) (ne (.role | default "") "router") -}}true{{- end -}}
{{- end -}}

{{- /* The model as clients name it. */ -}}
{{- define "innkeeper.servedName" -}}
{{- .Values.model.servedName | default (base .Values.model.folder) -}}
{{- end -}}

{{- /* In `args` and `env` of values: what the chart decides, so that workers, policies and engines agree. */ -}}
{{- define "innkeeper.engine.vllm.decided" -}}
args: [host, port, uds, model, served-model-name, kv-transfer-config, api-key, ssl-keyfile, ssl-certfile, data-parallel-size, dp]
env: [VLLM_NIXL_SIDE_CHANNEL_HOST, VLLM_NIXL_SIDE_CHANNEL_PORT, UCX_TCP_PORT_RANGE, VLLM_API_KEY]
{{- end -}}

{{- define "innkeeper.engine.vllm.args" -}}
{{- $v := .root.Values -}}
{{- $extra := mustMergeOverwrite (dict "backends" (list "UCX")) (deepCopy $v.engine.kvConnectorExtraConfig) -}}
{{- $_ := set $extra "kv_lease_duration" (int $v.engine.kvLeaseSeconds) -}}
{{- /* A decode engine that cannot read KV says so: it never computes a prompt in silence. */ -}}
{{- $transfer := dict "kv_connector" "NixlConnector" "kv_load_failure_policy" "fail" "kv_connector_extra_config" $extra -}}
{{- $_ := set $transfer "kv_role" (ternary "kv_producer" "kv_consumer" (eq .role "prefill")) -}}
- /models/{{ $v.model.folder }}
- --served-model-name={{ include "innkeeper.servedName" .root }}
# Nobody but the worker may ask it: a ticket in a request names pages of another engine.
- --host=127.0.0.1
- --port={{ .workload.engine.port }}
- {{ printf "--kv-transfer-config=%s" ($transfer | toJson) | quote }}
{{- with .workload.engine.args }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Over TCP alone a decode engine's pages come back when prefill's engine is killed; over shared memory they do not. GPUs' memory
needs a copy through the host's. */ -}}
{{- define "innkeeper.engine.vllm.transports" -}}
{{- $gpu := .workload.gpu -}}
tcp
{{- if gt (int $gpu.count) 0 -}}
{{- if hasPrefix "nvidia.com/" $gpu.resourceName -}},cuda_copy{{- else if hasPrefix "amd.com/" $gpu.resourceName -}},rocm_copy{{- end -}}
{{- end -}}
{{- end -}}

{{- /* As a list; what `env` of values names goes over it. */ -}}
{{- define "innkeeper.engine.vllm.env" -}}
{{- $ports := .root.Values.engine.kvPorts -}}
# Its caches go there, whoever it runs as; and that user may have no name to look up.
- {name: HOME, value: /home/engine}
- {name: USER, value: engine}
- {name: HF_HUB_OFFLINE, value: "1"}
- {name: VLLM_NO_USAGE_STATS, value: "1"}
- {name: DO_NOT_TRACK, value: "1"}
- name: VLLM_NIXL_SIDE_CHANNEL_HOST
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: VLLM_NIXL_SIDE_CHANNEL_PORT, value: {{ $ports.sideChannel | toString | quote }}}
- {name: UCX_TLS, value: {{ include "innkeeper.engine.vllm.transports" . | quote }}}
- {name: UCX_TCP_PORT_RANGE, value: "{{ $ports.first }}-{{ $ports.last }}"}
{{- end -}}

{{- define "innkeeper.engineEnv" -}}
{{- $own := .workload.engine.env -}}
{{- $named := list -}}
{{- range $own -}}{{- $named = append $named .name -}}{{- end -}}
{{- $env := list -}}
{{- range include (printf "innkeeper.engine.%s.env" .root.Values.engine.kind) . | fromYamlArray -}}
{{- if not (has .name $named) -}}{{- $env = append $env . -}}{{- end -}}
{{- end -}}
{{- toYaml (concat $env $own) -}}
{{- end -}}

{{- define "innkeeper.engineImage" -}}
{{- include "innkeeper.reference" (dict "image" .workload.engine.image "tag" "") -}}
{{- end -}}

{{- define "innkeeper.engineArgs" -}}
{{- include (printf "innkeeper.engine.%s.args" .root.Values.engine.kind) . -}}
{{- end -}}

{{- /* What an engine is: what two that pair must have the same of, and more. */ -}}
{{- define "innkeeper.engineIs" -}}
{{- list (include "innkeeper.engineImage" .) .workload.engine.command (include "innkeeper.engineArgs" . | fromYamlArray) (include "innkeeper.engineEnv" . | fromYamlArray) | toJson -}}
{{- end -}}

{{- /* The kubelet reaches no port of the pod's loopback, so it asks from within. http.client heeds no proxy. */ -}}
{{- define "innkeeper.engineAsk" -}}
{{- $p := .workload.engine.probes -}}
exec:
  command:
    {{- if $p.command }}
    {{- toYaml $p.command | nindent 4 }}
    {{- else }}
    - python3
    - -c
    - "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', {{ .workload.engine.port }}, timeout={{ $p.timeoutSeconds }}); c.request('GET', '/health'); sys.exit(c.getresponse().status != 200)"
    {{- end }}
timeoutSeconds: {{ $p.timeoutSeconds }}
{{- end -}}

{{- /* An init container that is never over is a sidecar: Kubernetes starts the worker when the engine's startup probe has passed, restarts
the engine alone when its liveness probe fails, and ends it after the worker, whose rooms need it to the end of its drain. */ -}}
{{- define "innkeeper.engine" -}}
{{- $v := .root.Values -}}
{{- $e := .workload.engine -}}
- name: engine
  restartPolicy: Always
  image: {{ include "innkeeper.engineImage" . }}
  imagePullPolicy: {{ $e.image.pullPolicy }}
  # An engine that was killed leaves its segments, and this volume outlives its container. Nobody else uses it.
  command: [/bin/sh, -c, 'rm -rf /dev/shm/*; exec "$0" "$@"', {{ range $index, $word := $e.command }}{{ if $index }}, {{ end }}{{ $word | quote }}{{ end }}]
  args:
    {{- include "innkeeper.engineArgs" . | nindent 4 }}
  env:
    {{- include "innkeeper.engineEnv" . | nindent 4 }}
  # Not ready is what it says itself; that it answers proves nothing, which is why the worker's readiness looks at its steps.
  startupProbe:
    {{- include "innkeeper.engineAsk" . | nindent 4 }}
    periodSeconds: 5
    failureThreshold: {{ div (add (int $e.startupBudgetSeconds) 4) 5 }}
  readinessProbe:
    {{- include "innkeeper.engineAsk" . | nindent 4 }}
    periodSeconds: {{ $e.probes.periodSeconds }}
    failureThreshold: {{ $e.probes.readinessFailures }}
  {{- if eq $v.engine.restart "probe" }}
  livenessProbe:
    # The worker's port, by number: names are those of the container's own ports.
    httpGet: {path: /engine/livez, port: 8080}
    periodSeconds: {{ $e.livenessProbe.periodSeconds }}
    timeoutSeconds: {{ $e.livenessProbe.timeoutSeconds }}
    failureThreshold: {{ $e.livenessProbe.failureThreshold }}
    # The pod's grace is for drains. An engine that is to be ended holds others' pages, and may be too stuck to heed SIGTERM.
    terminationGracePeriodSeconds: 2
  {{- end }}
  resources:
    {{- include "innkeeper.resources" (dict "resources" $e.resources "gpu" .workload.gpu) | nindent 4 }}
  securityContext:
    {{- toYaml (mustMergeOverwrite (deepCopy $v.securityContext) (deepCopy $e.securityContext)) | nindent 4 }}
  volumeMounts:
    {{- include "innkeeper.modelMount" .root | nindent 4 }}
    - {name: shm, mountPath: /dev/shm}
    - {name: engine-home, mountPath: /home/engine}
    - {name: engine-tmp, mountPath: /tmp}
    {{- with $e.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "innkeeper.engineVolumes" -}}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .workload.sharedMemory.sizeLimit }}}
- name: engine-home
  emptyDir: {sizeLimit: {{ .workload.engine.scratchSizeLimit }}}
- name: engine-tmp
  emptyDir: {sizeLimit: {{ .workload.engine.scratchSizeLimit }}}
{{- end -}}
