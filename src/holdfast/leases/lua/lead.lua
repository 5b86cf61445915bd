-- Become the leader, if nobody else is: the record is the lease and expires with it. The fence is Redis TIME, so a later term has a higher one.
-- KEYS  1 leader (hash with ttl)
-- ARGV  1 owner, 2 ttl ms
-- returns the fence of the new term, or 0 if somebody else leads
local leader = KEYS[1]
local owner, ttl = ARGV[1], tonumber(ARGV[2])

-- Who leads already and asks did not hear it, or could not resign: it begins another term, and need not wait for the old to end.
local have = redis.call('HMGET', leader, 'owner', 'fence')
if have[1] and have[1] ~= owner then return 0 end
local time = redis.call('TIME')
local fence = math.max(time[1] * 1000000 + time[2], (tonumber(have[2] or nil) or 0) + 1)
redis.call('HSET', leader, 'owner', owner, 'fence', string.format('%.0f', fence))
redis.call('PEXPIRE', leader, ttl)
return fence
