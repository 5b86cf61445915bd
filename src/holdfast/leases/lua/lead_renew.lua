-- Stay the leader, if we still are.
-- KEYS  1 leader (hash with ttl)
-- ARGV  1 owner, 2 fence, 3 ttl ms
-- returns kept | lost
-- @include held
local leader = KEYS[1]
local owner, fence, ttl = ARGV[1], ARGV[2], ARGV[3]

if not held(leader, owner, fence) then return 'lost' end -- guard: leader-renew-fence
redis.call('PEXPIRE', leader, ttl)
return 'kept'
