-- Stop leading orphan cleanup, if we still do; another's term is never ended.
-- KEYS  1 leader (string with ttl)
-- ARGV  1 `owner fence`
-- returns released | stale
local leader = KEYS[1]
local term = ARGV[1]

if redis.call('GET', leader) ~= term then return 'stale' end -- guard: scheduler-leader-resign-term
redis.call('DEL', leader)
return 'released'
