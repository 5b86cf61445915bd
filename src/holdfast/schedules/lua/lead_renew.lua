-- Stay the leader of orphan cleanup, if we still are.
-- KEYS  1 leader (string with ttl)
-- ARGV  1 `owner fence`, 2 ttl ms
-- returns kept | lost
local leader = KEYS[1]
local term, ttl = ARGV[1], ARGV[2]

if redis.call('GET', leader) ~= term then return 'lost' end -- guard: scheduler-leader-renew-term
redis.call('PEXPIRE', leader, ttl)
return 'kept'
