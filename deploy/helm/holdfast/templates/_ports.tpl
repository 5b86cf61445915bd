{{/* The ports that NetworkPolicies open: those of the URLs in the values. A URL that is not there must have its ports listed. */}}

{{/* Called with a URL: its hosts and ports, without a user. */}}
{{- define "holdfast.urlHosts" -}}
{{- regexReplaceAll "^[a-z+]+://(?:[^/]*@)?([^/?#]*).*$" . "${1}" -}}
{{- end -}}

{{/* Called with a value of env: "true" if the port of the URL can be read in it. A reference like $(COLLECTOR) is replaced in the pod only. */}}
{{- define "holdfast.portIsSeen" -}}
{{- $hosts := include "holdfast.urlHosts" . -}}
{{- if and $hosts (or (not (contains "$(" $hosts)) (regexMatch ":[0-9]+$" $hosts)) -}}true{{- end -}}
{{- end -}}

{{/* Called with (list url default): the ports of the hosts of a URL, as a list. */}}
{{- define "holdfast.urlPorts" -}}
{{- $ports := list -}}
{{- if not (hasPrefix "unix:" (index . 0)) -}}
{{- range splitList "," (include "holdfast.urlHosts" (index . 0)) -}}
{{- $ports = append $ports (default ($ | last | toString) (regexFind "[0-9]+$" (regexFind ":[0-9]+$" .)) | int64) -}}
{{- end -}}
{{- end -}}
{{- toJson (uniq $ports) -}}
{{- end -}}

{{/* Called with root: the ports of an external Redis. */}}
{{- define "holdfast.redisPorts" -}}
{{- $redis := .Values.redis -}}
{{- if $redis.ports -}}{{- toJson $redis.ports -}}{{- else -}}{{- include "holdfast.urlPorts" (list $redis.url 6379) -}}{{- end -}}
{{- end -}}

{{/* Called with root: the ports of an external PostgreSQL. */}}
{{- define "holdfast.databasePorts" -}}
{{- $database := .Values.database -}}
{{- if $database.port -}}{{- toJson (list $database.port) -}}{{- else -}}{{- include "holdfast.urlPorts" (list $database.url 5432) -}}{{- end -}}
{{- end -}}

{{/* Called with root: the variables of all processes that name an OTLP collector. */}}
{{- define "holdfast.collectors" -}}
{{- $given := .Values.env -}}
{{- range include "holdfast.workers" . | fromYaml -}}{{- $given = concat $given .env -}}{{- end -}}
{{- $found := list -}}
{{- range $given -}}
{{- if regexMatch "^OTEL_EXPORTER_OTLP_([A-Z]+_)?ENDPOINT$" .name -}}{{- $found = append $found . -}}{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Called with root: the ports of the OTLP collectors. */}}
{{- define "holdfast.telemetryPorts" -}}
{{- $ports := .Values.networkPolicy.telemetryPorts -}}
{{- range include "holdfast.collectors" . | fromJsonArray -}}
{{- if include "holdfast.portIsSeen" (default "" .value) -}}
{{- $ports = concat $ports (include "holdfast.urlPorts" (list .value (ternary 443 80 (hasPrefix "https:" .value))) | fromJsonArray) -}}
{{- end -}}
{{- end -}}
{{- $whole := list -}}
{{- range $ports -}}{{- $whole = append $whole (int64 .) -}}{{- end -}}
{{- toJson (uniq $whole) -}}
{{- end -}}

{{- define "holdfast.checkPorts" -}}
{{- $v := .Values -}}
{{- if $v.networkPolicy.enabled -}}
{{- if and $v.secret.existing (not $v.redis.trial.enabled) (not $v.redis.ports) -}}
{{- fail (printf "redis.ports: the URL of Redis is in the Secret %s, which the chart does not read, and NetworkPolicies must open its ports: list them, like [6379]" $v.secret.existing) -}}
{{- end -}}
{{- if and $v.secret.existing (include "holdfast.hasDatabase" .) (not $v.database.trial.enabled) (not $v.database.port) -}}
{{- fail (printf "database.port: the URL of the database is in the Secret %s, which the chart does not read, and NetworkPolicies must open its port: name it, like 5432" $v.secret.existing) -}}
{{- end -}}
{{- if and (regexMatch "^rediss?\\+sentinel:" $v.redis.url) (not $v.redis.ports) -}}
{{- fail "redis.ports: Sentinel names servers whose ports are not in redis.url, and NetworkPolicies must open them: list those of Sentinel and of the servers, like [26379, 6379]" -}}
{{- end -}}
{{- if and (regexMatch "^rediss?\\+cluster:" $v.redis.url) (not $v.redis.ports) -}}
{{- fail "redis.ports: a Redis Cluster names servers whose ports are not in redis.url, and NetworkPolicies must open them: list the ports of all servers, like [6379] or [7000, 7001, 7002]" -}}
{{- end -}}
{{- if and $v.redis.url $v.redis.ports -}}
{{- range include "holdfast.urlPorts" (list $v.redis.url (ternary 26379 6379 (contains "+sentinel:" $v.redis.url))) | fromJsonArray -}}
{{- if not (has (toString .) (toStrings $v.redis.ports)) -}}
{{- fail (printf "redis.ports: redis.url has the port %d, which is not among them, so nobody could connect: add it, or leave redis.ports empty" (int64 .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (regexMatch "[?&](host|port)=" $v.database.url) (not $v.database.port) -}}
{{- fail "database.port: database.url names its host or port after the ?, where the chart does not look, and NetworkPolicies must open its port: name it, like 5432" -}}
{{- end -}}
{{- if and $v.database.url $v.database.port (not (regexMatch "[?&](host|port)=" $v.database.url)) -}}
{{- range include "holdfast.urlPorts" (list $v.database.url 5432) | fromJsonArray -}}
{{- if ne (int64 .) (int64 $v.database.port) -}}
{{- fail (printf "database.port: database.url has the port %d, so nobody could connect: leave database.port out" (int64 .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range include "holdfast.collectors" . | fromJsonArray -}}
{{- if not (or (include "holdfast.portIsSeen" (default "" .value)) $v.networkPolicy.telemetryPorts) -}}
{{- fail (printf "networkPolicy.telemetryPorts: the port of %s is not in env itself, and NetworkPolicies must open it: list it, like [4318]" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
