{{/* holdfast.yaml: `settings`, and what the chart itself decides. */}}
{{- define "holdfast.settings" -}}
{{- $v := .Values -}}
{{- $queues := dict -}}
{{- range $type := include "holdfast.workers" . | fromYaml -}}
{{- $scaling := dict "min_workers" (int64 $type.scaling.min) "max_workers" (int64 $type.scaling.max) "target_wait_seconds" $type.scaling.targetWait "age_weight" $type.scaling.ageWeight "down_seconds" $type.scaling.down -}}
{{- range $queue := $type.queues -}}
{{- $_ := set $queues $queue (dict "slots" (int64 $type.slots) "scaling" $scaling) -}}
{{- end -}}
{{- end -}}
{{- $hosts := dict "listen" $v.listen "grpc_port" (int64 $v.host.grpcPort) "max_processes" (int64 $v.host.maxProcesses) "stop_seconds" $v.host.stopSeconds "insecure" $v.host.insecure "service_name" $v.host.name -}}
{{- if $v.host.tls.secret -}}
{{- $_ := mergeOverwrite $hosts (dict "insecure" false "tls_certificate" "/etc/holdfast-tls/tls.crt" "tls_key" "/etc/holdfast-tls/tls.key" "tls_ca" "/etc/holdfast-tls/ca.crt") -}}
{{- end -}}
{{- $ours := dict
  "queues" $queues
  "log" (dict "level" $v.log.level "format" $v.log.format)
  "metrics" (dict "host" $v.listen "port" (int64 $v.metrics.port))
  "api" (dict "host" $v.listen "port" (int64 $v.api.port) "open" $v.api.open "linger_seconds" $v.api.linger "drain_seconds" $v.api.drain "janitor" (not $v.janitor.enabled) "relay" (not $v.relay.enabled))
  "hosts" $hosts
  "janitor" (dict "pod_selector" (list (printf "app.kubernetes.io/instance=%s" .Release.Name) "app.kubernetes.io/component=worker")) -}}
{{- if eq $v.keda.profile "external-push" -}}
{{- $_ := set $ours "scaler" (dict "host" $v.listen "port" (int64 $v.scaler.port)) -}}
{{- end -}}
{{- toYaml (mergeOverwrite (deepCopy $v.settings) $ours) -}}
{{- end -}}

{{/* What the chart decides, by its path in holdfast.yaml, and where to say it instead. */}}
{{- define "holdfast.owned" -}}
redis.url: redis.url
redis.password: redis.password
database.url: database.url
database.path: database.ephemeral
log.level: log.level
log.format: log.format
metrics.host: listen
metrics.port: metrics.port
api.host: listen
api.port: api.port
api.open: api.open
api.keys: secret.apiKeys
api.linger_seconds: api.linger
api.drain_seconds: api.drain
api.janitor: janitor.enabled
api.relay: relay.enabled
queue.slots: workerDefaults.slots
queue.scaling: workerDefaults.scaling
worker.name: nothing, since it is the pod's name
worker.queues: workers.<type>.queues
worker.drain_seconds: workers.<type>.drain
worker.envoy_quit_url: envoyQuitUrl
janitor.kubernetes: janitor.kubernetes
janitor.pod_selector: nothing, since it is that of the workers
event_api.secret: secret.eventApiSecret
relay.webhook_secret: secret.webhookSecret
scaler.host: listen
scaler.port: scaler.port
hosts.name: nothing, since it is the pod's name
hosts.address: nothing, since it is the pod's address
hosts.listen: listen
hosts.grpc_port: host.grpcPort
hosts.max_processes: host.maxProcesses
hosts.stop_seconds: host.stopSeconds
hosts.insecure: host.insecure
hosts.service_name: host.name
hosts.token: secret.hostsToken
hosts.tls_certificate: host.tls.secret
hosts.tls_key: host.tls.secret
hosts.tls_ca: host.tls.secret
{{- end -}}
