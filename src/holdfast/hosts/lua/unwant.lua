-- Say that an agent should run no more. Its host stops it when it is told, or when it renews next.
-- KEYS  as in agents
-- ARGV  1 id, 2 ms for which its record stays
-- returns { unknown | stopped | stopping, host, address, fence }
-- @include agents
local id, keep = ARGV[1], tonumber(ARGV[2])
local record = record_prefix .. id

local have = redis.call('HMGET', record, 'wanted', 'owner', 'address', 'fence')
if not have[4] then return { 'unknown', '', '', '0' } end
if have[1] ~= '1' and (have[2] or '') == '' then return { 'unknown', '', '', have[4] } end
if (have[2] or '') == '' then
  leave_host(id)
  forget(id, 'stopped', keep)
  return { 'stopped', '', '', have[4] }
end
redis.call('HSET', record, 'wanted', '0', 'status', 'stopping')
-- Not running from the moment that this is answered: who looks for it finds nobody.
leave_host(id, have[2]) -- guard: unwanted-agent-location
return { 'stopping', have[2], have[3], have[4] }
