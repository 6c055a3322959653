{{- define "innkeeper.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Short enough that a role's name and a hash fit behind it. */ -}}
{{- define "innkeeper.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "innkeeper.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "innkeeper.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Selectors are never changed: they hold what no upgrade changes. Takes (dict "root" $ "component" "router"). */ -}}
{{- define "innkeeper.selector" -}}
app.kubernetes.io/name: {{ include "innkeeper.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "innkeeper.labels" -}}
{{ include "innkeeper.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: innkeeper
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Takes an image's values and the tag that stands in for none. */ -}}
{{- define "innkeeper.reference" -}}
{{- $name := .image.repository -}}
{{- with .image.registry -}}{{- $name = printf "%s/%s" . $name -}}{{- end -}}
{{- if .image.digest -}}{{ $name }}@{{ .image.digest }}{{- else -}}{{ $name }}:{{ .image.tag | default .tag }}{{- end -}}
{{- end -}}

{{- define "innkeeper.image" -}}
{{- include "innkeeper.reference" (dict "image" .Values.image "tag" .Chart.AppVersion) -}}
{{- end -}}

{{- /* What may form pairs: the same image, engine and model; of engines next door image, command, arguments and variables of both roles. */ -}}
{{- define "innkeeper.revision" -}}
{{- if .Values.revision -}}
{{- .Values.revision -}}
{{- else -}}
{{- $what := printf "%s %s %s %s" (include "innkeeper.image" .) .Values.engine.kind .Values.model.file .Values.model.huggingFace -}}
{{- if include "innkeeper.nextDoor" (dict "root" .) -}}
{{- range $role := list "prefill" "decode" -}}
{{- $what = printf "%s %s" $what (include "innkeeper.engineIs" (dict "root" $ "role" $role "workload" (index $.Values $role))) -}}
{{- end -}}
{{- end -}}
{{- printf "%s-%s" (.Values.image.tag | default .Chart.AppVersion | trunc 40) ($what | sha256sum | trunc 8) -}}
{{- end -}}
{{- end -}}

{{- define "innkeeper.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "innkeeper.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "innkeeper.etcdEndpoints" -}}
{{- if .Values.etcd.tryOut.enabled -}}
{{- list (printf "http://%s-etcd:2379" (include "innkeeper.fullname" .)) | toJson -}}
{{- else -}}
{{- .Values.etcd.endpoints | toJson -}}
{{- end -}}
{{- end -}}

{{- /* An address to listen at, as host and port. */ -}}
{{- define "innkeeper.listen" -}}
{{- if contains ":" .host -}}[{{ .host }}]:{{ .port }}{{- else -}}{{ .host }}:{{ .port }}{{- end -}}
{{- end -}}

{{- /* What a process needs after its drain: blame, streams, last spans; and an engine next door to end, after its worker. */ -}}
{{- define "innkeeper.afterDrain" -}}
{{- ternary 20 10 (not (empty (include "innkeeper.nextDoor" .))) -}}
{{- end -}}

{{- /* preStop + drain + what comes after it. Takes (dict "root" $ "role" "router" "workload" …). */ -}}
{{- define "innkeeper.leastGrace" -}}
{{- add (int .workload.preStopSeconds) (int .workload.drainTimeoutSeconds) (int (include "innkeeper.afterDrain" .)) -}}
{{- end -}}

{{- define "innkeeper.grace" -}}
{{- if kindIs "invalid" .workload.terminationGracePeriodSeconds -}}
{{- include "innkeeper.leastGrace" . -}}
{{- else -}}
{{- int .workload.terminationGracePeriodSeconds -}}
{{- end -}}
{{- end -}}
