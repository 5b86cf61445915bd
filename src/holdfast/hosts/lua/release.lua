-- Release an agent of a host; only the host that holds it can do so.
-- KEYS  as in agents
-- ARGV  1 host, 2 id, 3 fence, 4 stopped | crashed | moving | restarting | waiting, 5 error, 6 ms for which its record stays,
--       7 ms for placing one that moves
-- returns released | stale
-- @include agents
local host, id, status, keep = ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[6])
local record = record_prefix .. id

local have = redis.call('HMGET', record, 'owner', 'fence', 'wanted')
if have[1] ~= host or have[2] ~= ARGV[3] then return 'stale' end -- guard: agent-release-fence
leave_host(id, host) -- guard: agent-release-location
if status == 'stopped' or have[3] ~= '1' then
  forget(id, 'stopped', keep)
elseif status == 'crashed' then
  redis.call('ZREM', leases, id) -- guard: agent-release-lease
  redis.call('HSET', record, 'status', 'crashed', 'error', ARGV[5], 'owner', '', 'address', '')
elseif status == 'restarting' or status == 'waiting' then
  -- The host keeps the lease: no other host starts the agent, and it has no location until it runs again.
  redis.call('HSET', record, 'status', 'starting', 'error', ARGV[5])
  -- An agent that waits for its lease has not failed.
  if status == 'restarting' then redis.call('HINCRBY', record, 'restarts', 1) end
else
  redis.call('HSET', record, 'status', 'placing', 'owner', '', 'address', '')
  redis.call('ZADD', leases, now_ms() + tonumber(ARGV[7]), id)
end
return 'released'
