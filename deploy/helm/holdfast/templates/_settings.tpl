{{/* holdfast.yaml: `settings`, and what the chart itself decides. */}}
{{- define "holdfast.settings" -}}
{{- $v := .Values -}}
{{- $queues := dict -}}
{{- range $type := include "holdfast.workers" . | fromYaml -}}
{{- $scaling := dict "enabled" (eq (include "holdfast.autoscaled" (list $ $type)) "true") "min_workers" (int64 $type.scaling.min) "max_workers" (int64 $type.scaling.max) "target_wait_seconds" $type.scaling.targetWait "age_weight" $type.scaling.ageWeight "down_seconds" $type.scaling.down -}}
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
{{- if not (include "holdfast.hasDatabase" .) -}}
{{- $_ := set $ours "database" (dict "per_worker" true) -}}
{{- end -}}
{{- toYaml (mergeOverwrite (deepCopy $v.settings) $ours) -}}
{{- end -}}

{{/* What the chart decides, by its path in holdfast.yaml: where to say it instead, and all variables that would say it behind
     the chart's back. A test compares them with the settings of the code. */}}
{{- define "holdfast.owned" -}}
redis.url: {instead: redis.url, env: [REDIS_URL, HOLDFAST_REDIS_URL]}
redis.password: {instead: redis.password, env: [REDIS_PASSWORD, HOLDFAST_REDIS_PASSWORD]}
database.url: {instead: database.url, env: [DATABASE_URL, HOLDFAST_DATABASE_URL]}
database.path: {instead: database.ephemeral, env: [HOLDFAST_DATABASE_PATH]}
database.per_worker: {instead: database.ephemeral, env: [HOLDFAST_DATABASE_PER_WORKER]}
log.level: {instead: log.level, env: []}    # one type may log more than others
log.format: {instead: log.format, env: []}
metrics.host: {instead: listen, env: [HOLDFAST_METRICS_HOST]}
metrics.port: {instead: metrics.port, env: [METRICS_PORT, HOLDFAST_METRICS_PORT]}
api.host: {instead: listen, env: [HOLDFAST_API_HOST]}
api.port: {instead: api.port, env: [HOLDFAST_API_PORT]}
api.open: {instead: api.open, env: [HOLDFAST_API_OPEN]}
api.keys: {instead: secret.apiKeys, env: [HOLDFAST_API_KEYS]}
api.linger_seconds: {instead: api.linger, env: [HOLDFAST_API_LINGER_SECONDS]}
api.drain_seconds: {instead: api.drain, env: [HOLDFAST_API_DRAIN_SECONDS]}
api.janitor: {instead: janitor.enabled, env: [HOLDFAST_API_JANITOR]}
api.relay: {instead: relay.enabled, env: [HOLDFAST_API_RELAY]}
queue.slots: {instead: workerDefaults.slots, env: [WORKER_POD_MESSAGES_BATCH_SIZE, HOLDFAST_QUEUE_SLOTS]}
queue.scaling: {instead: workerDefaults.scaling, env: [HOLDFAST_QUEUE_SCALING_ENABLED, HOLDFAST_QUEUE_SCALING_MIN_WORKERS, HOLDFAST_QUEUE_SCALING_MAX_WORKERS, HOLDFAST_QUEUE_SCALING_TARGET_WAIT_SECONDS, HOLDFAST_QUEUE_SCALING_AGE_WEIGHT, HOLDFAST_QUEUE_SCALING_DOWN_SECONDS]}
worker.name: {instead: "it is the pod's name", env: [WORKER_POD_NAME, CLUSTER_WORKER_CONSUMER_NAME, HOLDFAST_WORKER_NAME]}
worker.queues: {instead: "workers.<type>.queues", env: [HOLDFAST_WORKER_QUEUES]}
worker.drain_seconds: {instead: "workers.<type>.drain", env: [HOLDFAST_DRAIN_SECONDS, HOLDFAST_WORKER_DRAIN_SECONDS]}
worker.envoy_quit_url: {instead: envoyQuitUrl, env: [HOLDFAST_ENVOY_QUIT_URL, HOLDFAST_WORKER_ENVOY_QUIT_URL]}
janitor.kubernetes: {instead: janitor.kubernetes, env: [HOLDFAST_JANITOR_KUBERNETES]}
janitor.pod_selector: {instead: it is that of the workers, env: [HOLDFAST_JANITOR_POD_SELECTOR]}
event_api.secret: {instead: secret.eventApiSecret, env: [INTERSERVICES_SHARED_SECRET, HOLDFAST_EVENT_API_SECRET]}
relay.webhook_secret: {instead: secret.webhookSecret, env: [HOLDFAST_WEBHOOK_SECRET, HOLDFAST_RELAY_WEBHOOK_SECRET]}
scaler.host: {instead: listen, env: [HOLDFAST_SCALER_HOST]}
scaler.port: {instead: scaler.port, env: [HOLDFAST_SCALER_PORT]}
hosts.name: {instead: "it is the pod's name", env: [HOLDFAST_HOSTS_NAME]}
hosts.address: {instead: "it is the pod's address", env: [POD_IP, HOLDFAST_HOSTS_ADDRESS]}
hosts.listen: {instead: listen, env: [HOLDFAST_HOSTS_LISTEN]}
hosts.grpc_port: {instead: host.grpcPort, env: [GRPC_PORT, HOLDFAST_HOSTS_GRPC_PORT]}
hosts.max_processes: {instead: host.maxProcesses, env: [MAX_PROCESSES, HOLDFAST_HOSTS_MAX_PROCESSES]}
hosts.stop_seconds: {instead: host.stopSeconds, env: [HOLDFAST_HOSTS_STOP_SECONDS]}
hosts.insecure: {instead: host.insecure, env: [HOLDFAST_HOSTS_INSECURE]}
hosts.service_name: {instead: host.name, env: [AGENT_HOST_SERVICE_NAME, HOLDFAST_HOSTS_SERVICE_NAME]}
hosts.token: {instead: secret.hostsToken, env: [HOLDFAST_HOSTS_TOKEN]}
hosts.tls_certificate: {instead: host.tls.secret, env: [HOLDFAST_HOSTS_TLS_CERTIFICATE]}
hosts.tls_key: {instead: host.tls.secret, env: [HOLDFAST_HOSTS_TLS_KEY]}
hosts.tls_ca: {instead: host.tls.secret, env: [HOLDFAST_HOSTS_TLS_CA]}
pod.name: {instead: "it is the pod's name", env: [POD_NAME, HOLDFAST_POD_NAME]}
pod.uid: {instead: "it is the pod's uid", env: [POD_UID, HOLDFAST_POD_UID]}
pod.namespace: {instead: "it is the pod's namespace", env: [POD_NAMESPACE, HOLDFAST_POD_NAMESPACE]}
config: {instead: settings, env: [HOLDFAST_CONFIG]}
{{- end -}}

{{/* What the chart reads in `settings`, to compute targets and graces or to refuse: a variable would beat what it read. */}}
{{- define "holdfast.read" -}}
messaging.queue: [MESSAGING_QUEUE_NAME, CLUSTER_STREAM_KEY, HOLDFAST_MESSAGING_QUEUE]
redis.key_prefix: [HOLDFAST_KEY_PREFIX, HOLDFAST_REDIS_KEY_PREFIX]
queue.max_pending: [MAX_PENDING_PER_WORKER, HOLDFAST_QUEUE_MAX_PENDING]
queue.partitions: [HOLDFAST_QUEUE_PARTITIONS]
queue.delete_after_ack: [REDIS_STREAM_DELETE_AFTER_ACK, HOLDFAST_QUEUE_DELETE_AFTER_ACK]
redis.scheduler.zombie-cleanup.executor-shutdown-await-ms: [HOLDFAST_REDIS_SCHEDULER_ZOMBIE_CLEANUP_EXECUTOR_SHUTDOWN_AWAIT_MS]
redis.scheduler.zombie-cleanup.executor-shutdown-force-await-ms: [HOLDFAST_REDIS_SCHEDULER_ZOMBIE_CLEANUP_EXECUTOR_SHUTDOWN_FORCE_AWAIT_MS]
redis.scheduler.orphan-cleanup.executor-shutdown-await-ms: [HOLDFAST_REDIS_SCHEDULER_ORPHAN_CLEANUP_EXECUTOR_SHUTDOWN_AWAIT_MS]
redis.scheduler.orphan-cleanup.executor-shutdown-force-await-ms: [HOLDFAST_REDIS_SCHEDULER_ORPHAN_CLEANUP_EXECUTOR_SHUTDOWN_FORCE_AWAIT_MS]
redis.scheduler.reconcile.executor-shutdown-await-ms: [HOLDFAST_REDIS_SCHEDULER_RECONCILE_EXECUTOR_SHUTDOWN_AWAIT_MS]
redis.scheduler.reconcile.executor-shutdown-force-await-ms: [HOLDFAST_REDIS_SCHEDULER_RECONCILE_EXECUTOR_SHUTDOWN_FORCE_AWAIT_MS]
worker.heartbeat_seconds: [HEARTBEAT_INTERVAL, HOLDFAST_WORKER_HEARTBEAT_SECONDS]
janitor.deletion_cost: [HOLDFAST_JANITOR_DELETION_COST]
janitor.deletion_cost_seconds: [HOLDFAST_JANITOR_DELETION_COST_SECONDS]
janitor.deletion_cost_lower_seconds: [HOLDFAST_JANITOR_DELETION_COST_LOWER_SECONDS]
relay.timeout_seconds: [HOLDFAST_RELAY_TIMEOUT_SECONDS]
{{- end -}}
