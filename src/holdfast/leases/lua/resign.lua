-- Stop leading, if we still do; another's term is never ended.
-- KEYS  1 leader (hash with ttl)
-- ARGV  1 owner, 2 fence
-- returns released | stale
-- @include held
local leader = KEYS[1]
local owner, fence = ARGV[1], ARGV[2]

if not held(leader, owner, fence) then return 'stale' end -- guard: leader-resign-fence
redis.call('DEL', leader)
return 'released'
