-- End the term of a leader, if owner and fence still hold it; the term of another owner is never ended.
-- KEYS  1 leader (hash or string, with ttl)
-- ARGV  1 owner, 2 fence, 3 format of the record: hash | string
-- returns released | stale
-- @include leader
local leader = KEYS[1]
local owner, fence, format = ARGV[1], ARGV[2], ARGV[3]

if not leads(leader, format, owner, fence) then return 'stale' end -- guard: leader-resign-fence
redis.call('DEL', leader)
return 'released'
