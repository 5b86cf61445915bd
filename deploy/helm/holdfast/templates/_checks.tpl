{{/* Values that would lose or strand work are refused here, each with a sentence that says what to change. */}}
{{- define "holdfast.checks" -}}
{{- include "holdfast.checkSettings" . -}}
{{- include "holdfast.checkStores" . -}}
{{- include "holdfast.checkPorts" . -}}
{{- include "holdfast.checkWorkers" . -}}
{{- include "holdfast.checkApi" . -}}
{{- include "holdfast.checkHosts" . -}}
{{- end -}}

{{- define "holdfast.checkSettings" -}}
{{- range $path, $owned := include "holdfast.owned" . | fromYaml -}}
{{- $parts := splitList "." $path -}}
{{- $section := get $.Values.settings (first $parts) -}}
{{- if and (kindIs "map" $section) (hasKey $section (last $parts)) -}}
{{- fail (printf "settings.%s: the chart decides this one, for all processes alike: %s" $path (include "holdfast.instead" $owned.instead)) -}}
{{- end -}}
{{- end -}}
{{- range $queue, $given := default dict .Values.settings.queues -}}
{{- range $key := list "slots" "scaling" -}}
{{- if and (kindIs "map" $given) (hasKey $given $key) -}}
{{- fail (printf "settings.queues.%s.%s: what KEDA scales by must be what workers do: set workers.<type>.%s instead" $queue $key $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.checkStores" -}}
{{- with .Values -}}
{{- if and .redis.trial.enabled .redis.url -}}
{{- fail "redis: there is a url and a trial server: keep one of redis.url and redis.trial.enabled" -}}
{{- end -}}
{{- if not (or .redis.trial.enabled .redis.url .secret.existing) -}}
{{- fail "redis: say where it is: redis.url, or redis-url in the Secret that secret.existing names, or redis.trial.enabled=true to try it" -}}
{{- end -}}
{{- range $name, $url := dict "redis.url" .redis.url "database.url" .database.url -}}
{{- if contains "$(" (include "holdfast.urlHosts" (default "" $url)) -}}
{{- fail (printf "%s: its host or port is a reference to a variable, and the URL goes into a Secret, in which Kubernetes replaces nothing: write the host and the port, or name a Secret of yours by secret.existing" $name) -}}
{{- end -}}
{{- end -}}
{{- if ne .redis.trial.maxmemoryPolicy "noeviction" -}}
{{- fail (printf "redis.trial.maxmemoryPolicy=%s: a Redis that evicts keys loses queued runs when it is full; it must be noeviction, which refuses new ones instead" .redis.trial.maxmemoryPolicy) -}}
{{- end -}}
{{- if and .database.trial.enabled .database.url -}}
{{- fail "database: there is a url and a trial server: keep one of database.url and database.trial.enabled" -}}
{{- end -}}
{{- if and .database.ephemeral (or .database.url .database.trial.enabled) -}}
{{- fail "database: ephemeral means none at all: remove database.ephemeral, or database.url and database.trial.enabled" -}}
{{- end -}}
{{- if not (or .database.url .database.trial.enabled .database.ephemeral .secret.existing) -}}
{{- fail "database: steps, state and archived runs would be lost with their pod: set database.url, or database-url in the Secret that secret.existing names, or database.trial.enabled=true to try it, or database.ephemeral=true if no agent needs them" -}}
{{- end -}}
{{- if .secret.existing -}}
{{- if or .redis.url .redis.password .database.url .database.trial.password .secret.apiKeys .secret.scalingToken .secret.hostsToken .secret.eventApiSecret .secret.webhookSecret -}}
{{- fail (printf "secret.existing=%s: that Secret has all of them, so redis.url, redis.password, database.url, database.trial.password and the other values of secret must be empty" .secret.existing) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* A variable beats holdfast.yaml: what the chart decides or counts on would not be what processes do. */ -}}
{{- define "holdfast.checkEnv" -}}
{{- $where := index . 0 -}}
{{- $given := list -}}
{{- range index . 1 -}}{{- $given = append $given (get . "name") -}}{{- end -}}
{{- range include "holdfast.owned" $ | fromYaml -}}
{{- $owned := . -}}
{{- range $name := .env -}}
{{- if has $name $given -}}
{{- fail (printf "%s: %s is set by the chart itself, for all that must agree about it: %s" $where $name (include "holdfast.instead" $owned.instead)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $path, $names := include "holdfast.read" $ | fromYaml -}}
{{- range $name := $names -}}
{{- if has $name $given -}}
{{- fail (printf "%s: %s would beat settings.%s, which the chart computes targets and graces from or checks: set that instead" $where $name $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.instead" -}}
{{- if hasPrefix "it is " . -}}leave it out, {{ . }}{{- else -}}set {{ . }} instead{{- end -}}
{{- end -}}

{{- define "holdfast.checkWorkers" -}}
{{- include "holdfast.checkEnv" (list "env" .Values.env) -}}
{{- $profile := .Values.keda.profile -}}
{{- $served := dict -}}
{{- range $name, $type := include "holdfast.workers" . | fromYaml -}}
{{- $where := printf "workers.%s" $name -}}
{{- if not (or $type.app $.Values.app) -}}
{{- fail (printf "%s: it needs your agents: set app, like app=your_agents:app" $where) -}}
{{- end -}}
{{- include "holdfast.checkEnv" (list (printf "%s.env" $where) $type.env) -}}
{{- range $queue := $type.queues -}}
{{- $held := dig "queues" $queue "max_pending" (dig "queue" "max_pending" 256 $.Values.settings) $.Values.settings -}}
{{- if gt (int64 $type.slots) (int64 $held) -}}
{{- fail (printf "%s.slots: %d are more than the %d runs that a worker may hold (max_pending of the queue %s): KEDA would count on slots that nobody has; lower slots or raise max_pending in settings" $where (int64 $type.slots) (int64 $held) $queue) -}}
{{- end -}}
{{- if hasKey $served $queue -}}
{{- fail (printf "%s.queues: %s serves the queue %s already: a queue belongs to one worker type, else two autoscalers would each bring workers for all of it" $where (get $served $queue) $queue) -}}
{{- end -}}
{{- $_ := set $served $queue $name -}}
{{- end -}}
{{- if gt (int64 $type.scaling.min) (int64 $type.scaling.max) -}}
{{- fail (printf "%s.scaling: min is %d and max is %d: lower min or raise max" $where (int64 $type.scaling.min) (int64 $type.scaling.max)) -}}
{{- end -}}
{{- $scaled := include "holdfast.autoscaled" (list $ $type) -}}
{{- if and $scaled (eq $profile "redis-streams") (lt (int64 $type.scaling.min) 1) -}}
{{- fail (printf "%s.scaling.min: KEDA's redis-streams trigger does not see delayed runs and retries, so with no worker nobody would wake for them: set it to 1 or more, or take another keda.profile" $where) -}}
{{- end -}}
{{- if and $scaled (gt (int64 $.Values.keda.fallback.replicas) (int64 $type.scaling.max)) -}}
{{- fail (printf "keda.fallback.replicas is %d, more than %s.scaling.max, which is %d: lower it or raise max" (int64 $.Values.keda.fallback.replicas) $where (int64 $type.scaling.max)) -}}
{{- end -}}
{{- if $scaled -}}
{{- include "holdfast.checkIdleFirst" (list $ $where $type.scaling.down) -}}
{{- end -}}
{{- $needed := add (ceil $type.drain) 15 -}}
{{- $grace := int64 $type.terminationGracePeriodSeconds -}}
{{- if and $grace (lt $grace $needed) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds: %d is too short: a worker drains for %v s and needs 15 s more to hand back what did not finish; set it to %d or more, or lower drain" $where $grace $type.drain $needed) -}}
{{- end -}}
{{- end -}}
{{- include "holdfast.checkServed" (list (default dict .Values.settings.queues) $served) -}}
{{- if or .Values.api.enabled .Values.scheduler.enabled -}}
{{- include "holdfast.checkDefaultQueue" (list (dig "messaging" "queue" "agent-queue" .Values.settings | toString) $served) -}}
{{- end -}}
{{- $given := prepend (values (default dict .Values.settings.queues)) (default dict .Values.settings.queue) -}}
{{- range $queue := $given -}}
{{- if and (eq $profile "redis-streams") (kindIs "map" $queue) (eq (get $queue "delete_after_ack" | toString) "false") -}}
{{- fail "settings: delete_after_ack is false, and with keda.profile redis-streams finished entries would count as work for ever: leave it true, or take another keda.profile" -}}
{{- end -}}
{{- if and (eq $profile "redis-streams") (kindIs "map" $queue) (gt (int64 (get $queue "partitions")) 1) -}}
{{- fail "settings: a queue has partitions, and KEDA's redis-streams trigger would see the first one only: take keda.profile metrics-api or external-push" -}}
{{- end -}}
{{- end -}}
{{- if and (eq $profile "redis-streams") (not .Values.redis.trial.enabled) (not .Values.keda.redisStreams.address) -}}
{{- fail "keda.redisStreams.address: KEDA asks Redis itself with this profile: say where it is, like redis.example:6379" -}}
{{- end -}}
{{- if eq $profile "redis-streams" -}}
{{- include "holdfast.checkKedaLogin" . -}}
{{- end -}}
{{- if and (eq $profile "metrics-api") (not .Values.api.enabled) -}}
{{- fail "keda.profile metrics-api: KEDA asks the api, and api.enabled is false: enable it or take another keda.profile" -}}
{{- end -}}
{{- end -}}

{{- /* Called with (list root where down): a cost that is lowered after the scale-in does not tell idle pods from busy ones. */ -}}
{{- define "holdfast.checkIdleFirst" -}}
{{- $v := (index . 0).Values -}}
{{- $marks := and $v.janitor.enabled $v.janitor.kubernetes (ne (dig "janitor" "deletion_cost" true $v.settings | toString) "false") -}}
{{- if $marks -}}
{{- $beat := float64 (include "holdfast.seconds" (list (dig "worker" "heartbeat_seconds" 10 $v.settings) "s")) -}}
{{- $look := float64 (include "holdfast.seconds" (list (dig "janitor" "deletion_cost_seconds" 2 $v.settings) "s")) -}}
{{- $lower := float64 (include "holdfast.seconds" (list (dig "janitor" "deletion_cost_lower_seconds" 0 $v.settings) "s")) -}}
{{- $needed := ceil (addf 15 $beat $look $lower) -}}
{{- if lt (float64 (index . 2)) $needed -}}
{{- $given := ternary (printf ", and settings.janitor.deletion_cost_lower_seconds adds %v s" $lower) "" (gt $lower 0.0) -}}
{{- fail (printf "%s.scaling.down: %v s is too short for idle workers to leave first: the HPA may shrink 15 s sooner, a worker's record may be %v s old, and the janitor looks every %v s%s: set it to %v or more, or settings.janitor.deletion_cost=false if busy workers may leave as well, whose runs are then handed back" (index . 1) (index . 2) $beat $look $given $needed) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Called with (list described served). A release without workers may describe the queues of another one. */ -}}
{{- define "holdfast.checkServed" -}}
{{- $served := index . 1 -}}
{{- range $queue, $_ := index . 0 -}}
{{- if and $served (not (hasKey $served $queue)) -}}
{{- fail (printf "settings.queues: no worker type serves the queue %s, so its runs would wait for ever: workers serve %s; correct the name, or add it to workers.<type>.queues" $queue (keys $served | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Called with (list queue served), where something submits: the queue of runs that name none needs a worker type. */ -}}
{{- define "holdfast.checkDefaultQueue" -}}
{{- $queue := index . 0 -}}
{{- $served := index . 1 -}}
{{- if and $served (not (hasKey $served $queue)) -}}
{{- fail (printf "settings.messaging.queue: no worker type serves the default queue %s, so a run that is submitted without a queue would wait for ever: workers serve %s; add %s to workers.<type>.queues, or set settings.messaging.queue to one that is served" $queue (keys $served | sortAlpha | join ", ") $queue) -}}
{{- end -}}
{{- end -}}

{{- /* KEDA logs in by itself, with what the TriggerAuthentication names: it does not read redis.url. */ -}}
{{- define "holdfast.checkKedaLogin" -}}
{{- $url := .Values.redis.url -}}
{{- $user := .Values.keda.redisStreams.username -}}
{{- if and (regexMatch "^[a-z+]+://([^/]*:[^/]+@|.*[?&]password=)" $url) (not .Values.redis.password) -}}
{{- fail "redis.url: it has the password in it, where KEDA, which asks Redis itself with keda.profile redis-streams, can't read it: put it into redis.password" -}}
{{- end -}}
{{- if and (regexMatch "^[a-z+]+://([^:/@]+(:[^/]*)?@|.*[?&]username=)" $url) (not $user) -}}
{{- fail "redis.url: it names a user, and KEDA, which asks Redis itself with keda.profile redis-streams, would log in as another: name it in keda.redisStreams.username, too" -}}
{{- end -}}
{{- if and $user (not (or .Values.redis.password .Values.redis.trial.enabled .Values.secret.existing)) -}}
{{- fail "keda.redisStreams.username: a user needs a password: set redis.password, or redis-password in the Secret that secret.existing names" -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.checkApi" -}}
{{- with .Values.api -}}
{{- $needed := add .preStopSeconds (ceil .linger) (ceil .drain) 5 -}}
{{- $grace := int64 .terminationGracePeriodSeconds -}}
{{- if and .enabled $grace (lt $grace $needed) -}}
{{- fail (printf "api.terminationGracePeriodSeconds: %d is too short: preStopSeconds + linger + drain + 5 s to leave are %d; raise it, or lower drain" $grace $needed) -}}
{{- end -}}
{{- if gt (int64 .autoscaling.min) (int64 .autoscaling.max) -}}
{{- fail (printf "api.autoscaling: min is %d and max is %d: lower min or raise max" (int64 .autoscaling.min) (int64 .autoscaling.max)) -}}
{{- end -}}
{{- if and .open $.Values.secret.apiKeys -}}
{{- fail "api.open lets anybody in without a key, but secret.apiKeys has keys: remove one of the two" -}}
{{- end -}}
{{- if and .enabled (not (or .open $.Values.secret.apiKeys $.Values.secret.existing (eq $.Values.keda.profile "metrics-api"))) -}}
{{- fail "secret.apiKeys: nobody could call the api, so it would not start: add a line that `holdfast api new-key NAME` prints, or set api.open=true" -}}
{{- end -}}
{{- if and .ingress.enabled (not .ingress.host) -}}
{{- fail "api.ingress.host: an Ingress without a host takes the requests of everybody else's: name one" -}}
{{- end -}}
{{- end -}}
{{- if not (or .Values.api.enabled .Values.janitor.enabled) -}}
{{- fail "janitor: nobody would remove ghosts, archive runs or bring back lost ones: enable the janitor, or the api, which is one too" -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.checkHosts" -}}
{{- with .Values.host -}}
{{- if .enabled -}}
{{- if not $.Values.app -}}
{{- fail "host: it needs your residents: set app, like app=your_agents:app" -}}
{{- end -}}
{{- $needed := int64 (include "holdfast.hostGrace" $) -}}
{{- $grace := int64 .terminationGracePeriodSeconds -}}
{{- if and $grace (lt $grace $needed) -}}
{{- fail (printf "host.terminationGracePeriodSeconds: %d is too short: %d agents that move eight at a time, each within %v s, and 30 s more need %d; raise it, or lower maxProcesses or stopSeconds" $grace (int64 .maxProcesses) .stopSeconds $needed) -}}
{{- end -}}
{{- if gt (int64 .autoscaling.min) (int64 .autoscaling.max) -}}
{{- fail (printf "host.autoscaling: min is %d and max is %d: lower min or raise max" (int64 .autoscaling.min) (int64 .autoscaling.max)) -}}
{{- end -}}
{{- if not (or .insecure .tls.secret) -}}
{{- fail "host.insecure is false and host.tls.secret is empty: hosts would refuse to listen: name a Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.scheduler.enabled (not .Values.app) -}}
{{- fail "scheduler: it needs your schedules: set app, like app=your_agents:app" -}}
{{- end -}}
{{- include "holdfast.checkGraces" . -}}
{{- end -}}

{{- define "holdfast.checkGraces" -}}
{{- range $name, $needed := include "holdfast.needed" . | fromYaml -}}
{{- $values := get $.Values $name -}}
{{- $grace := int64 $values.terminationGracePeriodSeconds -}}
{{- if and (ne $values.enabled false) $grace (lt $grace (int64 $needed.seconds)) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds: %d is too short: %s; set it to %d or more" $name $grace $needed.why (int64 $needed.seconds)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
