-- Become the leader of orphan cleanup, if nobody is. The string is the lease, and tells who leads: `owner fence`.
-- KEYS  1 leader (string with ttl)
-- ARGV  1 owner, 2 ttl ms
-- returns the fence of the new term (Redis TIME, so a later one is higher), or 0 if somebody else leads
-- @include state
local leader = KEYS[1]
local owner, ttl = ARGV[1], ARGV[2]

local fence = now_us()
if not redis.call('SET', leader, owner .. ' ' .. string.format('%.0f', fence), 'NX', 'PX', ttl) then return 0 end
return fence
