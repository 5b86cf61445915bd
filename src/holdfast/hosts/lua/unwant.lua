-- Record that an agent should not run any more. Its host stops it on a StopAgent call, or with its next renewal.
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
-- It counts as not running from the reply on: it has no location.
leave_host(id, have[2]) -- guard: unwanted-agent-location
return { 'stopping', have[2], have[3], have[4] }
