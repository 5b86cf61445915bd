-- Become the leader, if no other owner is: the record is the lease and expires with it. The fence is Redis TIME, so it grows with
-- each term.
-- KEYS  1 leader (hash or string, with ttl)
-- ARGV  1 owner, 2 ttl ms, 3 format of the record: hash | string
-- returns the fence of the new term, or 0 if another owner leads
-- @include leader
local leader = KEYS[1]
local owner, ttl, format = ARGV[1], tonumber(ARGV[2]), ARGV[3]

-- An owner that leads already has lost the reply to its last call, or could not resign: it begins another term without waiting for
-- the end of the old one.
local have_owner, have_fence = read_leader(leader, format)
if have_owner and have_owner ~= owner then return 0 end
local time = redis.call('TIME')
local fence = math.max(time[1] * 1000000 + time[2], (tonumber(have_fence or nil) or 0) + 1)
write_leader(leader, format, owner, string.format('%.0f', fence))
redis.call('PEXPIRE', leader, ttl)
return fence
