-- An agent that was registered runs no more; one of our own hosts' is theirs to stop.
-- KEYS  as in agents
-- ARGV  1 id, 2 ms for which its record stays
-- returns { gone | held, the address where it is }
-- @include agents
local id, keep = ARGV[1], tonumber(ARGV[2])
local have = redis.call('HMGET', record_prefix .. id, 'entry', 'owner', 'address', 'fence', 'wanted')
local owner = have[2] or ''
-- Also one that waits for a host: forgotten here, nobody would ever place it.
if (have[1] or '') ~= '' and (owner ~= '' or have[5] == '1') then return { 'held', have[3] or '' } end
local at = redis.call('GET', location_prefix .. id) or ''
-- One that nobody has a record of was written by hand: its host is what its address begins with.
leave_host(id, have[4] and owner or string.match(at, '^(.*):%d+$'))
if have[4] then forget(id, 'stopped', keep) end
return { 'gone', at }
