-- Renew the lease of the leader, if owner and fence still hold it.
-- KEYS  1 leader (hash or string, with ttl)
-- ARGV  1 owner, 2 fence, 3 ttl ms, 4 format of the record: hash | string
-- returns kept | lost
-- @include leader
local leader = KEYS[1]
local owner, fence, ttl, format = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if not leads(leader, format, owner, fence) then return 'lost' end -- guard: leader-renew-fence
redis.call('PEXPIRE', leader, ttl)
return 'kept'
