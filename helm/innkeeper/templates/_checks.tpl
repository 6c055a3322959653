{{- /* What the schema cannot say. All that is wrong is said at once. */ -}}
{{- define "innkeeper.check" -}}
{{- $wrong := list -}}
{{- $v := .Values -}}

{{- if and $v.etcd.tryOut.enabled $v.etcd.endpoints -}}
{{- $wrong = append $wrong "etcd.endpoints and etcd.tryOut.enabled are both set: name your own etcd, or try out with the one of this chart, not both" -}}
{{- else if not (or $v.etcd.tryOut.enabled $v.etcd.endpoints) -}}
{{- $wrong = append $wrong "there is no etcd: name yours as etcd.endpoints={http://etcd.example:2379}, or set etcd.tryOut.enabled=true to try out with one of this chart" -}}
{{- end -}}
{{- $secure := 0 -}}
{{- range $v.etcd.endpoints -}}{{- if hasPrefix "https://" . -}}{{- $secure = add1 $secure -}}{{- end -}}{{- end -}}
{{- if and $secure (ne (int $secure) (len $v.etcd.endpoints)) -}}
{{- $wrong = append $wrong "etcd.endpoints mixes http and https: etcd is reached in one way" -}}
{{- end -}}
{{- if and $secure (not $v.etcd.tls.existingSecret) -}}
{{- $wrong = append $wrong "etcd.endpoints are https, and etcd.tls.existingSecret is empty: name a Secret that holds the CA that signed etcd's certificate" -}}
{{- else if and $v.etcd.tls.existingSecret (not $secure) -}}
{{- $wrong = append $wrong "etcd.tls.existingSecret is set, and etcd.endpoints are not https: the certificates would not be used" -}}
{{- end -}}
{{- if ne (empty $v.etcd.tls.certKey) (empty $v.etcd.tls.keyKey) -}}
{{- $wrong = append $wrong "etcd.tls.certKey and etcd.tls.keyKey belong together: set both, or none for an etcd that asks for no client certificate" -}}
{{- end -}}

{{- if eq $v.engine.kind "embedded" -}}
{{- if and $v.model.file $v.model.huggingFace -}}
{{- $wrong = append $wrong "model.file and model.huggingFace are both set: name one model" -}}
{{- else if not (or $v.model.file $v.model.huggingFace) -}}
{{- $wrong = append $wrong "there is no model: set model.file and model.volume, or model.huggingFace=org/name, or engine.kind=mock to try out without one" -}}
{{- end -}}
{{- if and $v.model.file (not (or $v.model.volume.existingClaim $v.model.volume.source)) -}}
{{- $wrong = append $wrong "model.file is set, and no volume holds it: set model.volume.existingClaim or model.volume.source" -}}
{{- end -}}
{{- end -}}
{{- $wrong = concat $wrong (include "innkeeper.checkEngine" . | fromJsonArray) -}}
{{- if and $v.model.volume.existingClaim $v.model.volume.source -}}
{{- $wrong = append $wrong "model.volume.existingClaim and model.volume.source are both set: one volume holds the model" -}}
{{- end -}}

{{- range $role := list "router" "prefill" "decode" -}}
{{- $w := index $v $role -}}
{{- $part := dict "root" $ "role" $role "workload" $w -}}
{{- $least := int (include "innkeeper.leastGrace" $part) -}}
{{- $after := int (include "innkeeper.afterDrain" $part) -}}
{{- if lt (int (include "innkeeper.grace" $part)) $least -}}
{{- $wrong = append $wrong (printf "%s.terminationGracePeriodSeconds = %d is too short, Kubernetes would kill the pod in its drain: it must be at least preStopSeconds + drainTimeoutSeconds + %d = %d + %d + %d = %d" $role (int $w.terminationGracePeriodSeconds) $after (int $w.preStopSeconds) (int $w.drainTimeoutSeconds) $after $least) -}}
{{- end -}}
{{- end -}}

{{- $scale := $v.router.autoscaling -}}
{{- if $scale.enabled -}}
{{- if gt (int $scale.minReplicas) (int $scale.maxReplicas) -}}
{{- $wrong = append $wrong (printf "router.autoscaling.minReplicas = %d is more than maxReplicas = %d" (int $scale.minReplicas) (int $scale.maxReplicas)) -}}
{{- end -}}
{{- if and (not $scale.targetCPUUtilizationPercentage) (not $scale.metrics) -}}
{{- $wrong = append $wrong "router.autoscaling.enabled is true, and there is nothing to scale by: set targetCPUUtilizationPercentage or metrics" -}}
{{- end -}}
{{- end -}}
{{- range $role := list "prefill" "decode" -}}
{{- $keda := (index $v $role).keda -}}
{{- if $keda.enabled -}}
{{- if not $v.keda.prometheusAddress -}}
{{- $wrong = append $wrong (printf "%s.keda.enabled is true, and keda.prometheusAddress is empty: KEDA asks Prometheus how long the queue is" $role) -}}
{{- end -}}
{{- if gt (int $keda.minReplicas) (int $keda.maxReplicas) -}}
{{- $wrong = append $wrong (printf "%s.keda.minReplicas = %d is more than maxReplicas = %d" $role (int $keda.minReplicas) (int $keda.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.metricsFrom) -}}
{{- if $v.metrics.podMonitor.enabled -}}
{{- $wrong = append $wrong "metrics.podMonitor.enabled is true, and networkPolicy.metricsFrom is empty: Prometheus could not reach the workers; name it there" -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled $v.networkPolicy.clientsFrom -}}
{{- $wrong = append $wrong "metrics.serviceMonitor.enabled is true, and neither networkPolicy.metricsFrom nor an empty clientsFrom lets Prometheus reach the routers; name it in metricsFrom" -}}
{{- end -}}
{{- end -}}
{{- range $route := list "httpRoute" "grpcRoute" -}}
{{- $r := index $v.gateway $route -}}
{{- if and $r.enabled (not $r.parentRefs) -}}
{{- $wrong = append $wrong (printf "gateway.%s.enabled is true, and gateway.%s.parentRefs is empty: a route without a gateway routes nothing" $route $route) -}}
{{- end -}}
{{- end -}}
{{- if and $v.gateway.inferencePool.enabled (not $v.gateway.inferencePool.endpointPickerRef.name) -}}
{{- $wrong = append $wrong "gateway.inferencePool.enabled is true, and gateway.inferencePool.endpointPickerRef names no endpoint picker: a pool is one for it; without one leave the pool off, routes then refer to the Service" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
{{- $wrong = append $wrong "ingress.enabled is true, and ingress.hosts is empty: name a host" -}}
{{- end -}}
{{- if and $v.prometheusRule.enabled (not (.Files.Get "files/alerts.yaml")) -}}
{{- $wrong = append $wrong "prometheusRule.enabled is true, and this copy of the chart has no files/alerts.yaml" -}}
{{- end -}}
{{- if and $v.dashboards.enabled (not (.Files.Get "files/dashboard.json")) -}}
{{- $wrong = append $wrong "dashboards.enabled is true, and this copy of the chart has no files/dashboard.json" -}}
{{- end -}}

{{- if $wrong -}}
{{- fail (printf "\n\nThese values cannot work:\n  - %s\n" (join "\n  - " $wrong)) -}}
{{- end -}}
{{- end -}}

{{- /* Of engines next door: what is wrong, as a list in JSON. */ -}}
{{- define "innkeeper.checkEngine" -}}
{{- $wrong := list -}}
{{- $v := .Values -}}
{{- $kind := $v.engine.kind -}}
{{- if not (include "innkeeper.nextDoor" (dict "root" .)) -}}
{{- range $name := list "folder" "servedName" -}}
{{- if index $v.model $name -}}
{{- $wrong = append $wrong (printf "model.%s is set, and engine.kind is %s: it is for engine.kind=vllm" $name $kind) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- if or $v.model.file $v.model.huggingFace -}}
{{- $wrong = append $wrong (printf "model.file and model.huggingFace are for engine.kind=embedded: with %s set model.folder, the folder in model.volume with the model's config.json and tokenizer.json" $kind) -}}
{{- end -}}
{{- if not $v.model.folder -}}
{{- $wrong = append $wrong (printf "engine.kind is %s, and model.folder is empty: name the folder in model.volume with the model's config.json and tokenizer.json" $kind) -}}
{{- end -}}
{{- if not (or $v.model.volume.existingClaim $v.model.volume.source) -}}
{{- $wrong = append $wrong (printf "engine.kind is %s, and no volume holds its model: set model.volume.existingClaim or model.volume.source" $kind) -}}
{{- end -}}
{{- if hasKey $v.engine.kvConnectorExtraConfig "kv_lease_duration" -}}
{{- $wrong = append $wrong "engine.kvConnectorExtraConfig has kv_lease_duration: set engine.kvLeaseSeconds, which workers are told too" -}}
{{- end -}}
{{- $ports := $v.engine.kvPorts -}}
{{- if gt (int $ports.first) (int $ports.last) -}}
{{- $wrong = append $wrong (printf "engine.kvPorts.first = %d is more than last = %d" (int $ports.first) (int $ports.last)) -}}
{{- end -}}
{{- $decided := include (printf "innkeeper.engine.%s.decided" $kind) . | fromYaml -}}
{{- range $role := list "prefill" "decode" -}}
{{- $e := (index $v $role).engine -}}
{{- if not (or $e.image.tag $e.image.digest) -}}
{{- $wrong = append $wrong (printf "%s.engine.image has neither tag nor digest: both roles need engines of one release, so name it" $role) -}}
{{- end -}}
{{- range $arg := $e.args -}}
{{- $name := regexReplaceAll "^-+([^=. ]*).*$" $arg "${1}" | replace "_" "-" -}}
{{- if and (hasPrefix "-" $arg) (has $name $decided.args) -}}
{{- $wrong = append $wrong (printf "%s.engine.args has %s: the chart decides it, or workers could not do with it; leave it out" $role (regexReplaceAll "[=. ].*$" $arg "")) -}}
{{- end -}}
{{- end -}}
{{- range $one := $e.env -}}
{{- if has $one.name $decided.env -}}
{{- $wrong = append $wrong (printf "%s.engine.env has %s: the chart decides it, or workers could not do with it; leave it out" $role $one.name) -}}
{{- end -}}
{{- end -}}
{{- $taken := dict "the worker's 8080" 8080 "the worker's 7100" 7100 "the worker's 7200" 7200 -}}
{{- $listening := merge (dict "engine.kvPorts.sideChannel" (int $ports.sideChannel)) $taken -}}
{{- range $who, $port := $listening -}}
{{- if eq (int $e.port) (int $port) -}}
{{- $wrong = append $wrong (printf "%s.engine.port = %d is taken: it is %s" $role (int $e.port) $who) -}}
{{- end -}}
{{- end -}}
{{- range $who, $port := merge (dict (printf "%s.engine.port" $role) (int $e.port)) $listening -}}
{{- if and (ge (int $port) (int $ports.first)) (le (int $port) (int $ports.last)) -}}
{{- $wrong = append $wrong (printf "engine.kvPorts %d to %d hold %s = %d: no port may be listened at twice" (int $ports.first) (int $ports.last) $who (int $port)) -}}
{{- end -}}
{{- end -}}
{{- range $who, $port := $taken -}}
{{- if eq (int $ports.sideChannel) (int $port) -}}
{{- $wrong = append $wrong (printf "engine.kvPorts.sideChannel = %d is taken: it is %s" (int $port) $who) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $wrong | uniq | toJson -}}
{{- end -}}
