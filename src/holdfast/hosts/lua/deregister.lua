-- Remove a registered agent; an agent of our own hosts is only stopped by its host.
-- KEYS  as in agents
-- ARGV  1 id, 2 ms for which its record stays
-- returns { gone | held, its address }
-- @include agents
local id, keep = ARGV[1], tonumber(ARGV[2])
local have = redis.call('HMGET', record_prefix .. id, 'entry', 'owner', 'address', 'fence', 'wanted')
local owner = have[2] or ''
-- Also an agent that waits for a host: removed here, it would never be placed.
if (have[1] or '') ~= '' and (owner ~= '' or have[5] == '1') then return { 'held', have[3] or '' } end
local at = redis.call('GET', location_prefix .. id) or ''
-- A location without a record was written by hand: its host is the first part of its address.
leave_host(id, have[4] and owner or string.match(at, '^(.*):%d+$'))
if have[4] then forget(id, 'stopped', keep) end
return { 'gone', at }
