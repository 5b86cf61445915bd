-- Reclaim agents of hosts that stopped renewing, and of callers that did not place them in time. Each goes to one caller, which has
-- the placing time to find a host for it; the fence rises, so that the old host's copy is refused when it resumes.
-- An agent that is bound to its host, or that was to be stopped, is removed.
-- KEYS  as in agents
-- ARGV  1 at most, 2 ms for placing each, 3 ms for which the record of one that ends stays, 4 '' for all, 'bound' for
--       those only, 'free' for agents without a host: no host is declared dead for them
-- returns per agent to be placed: id, fence, the host it was on
-- @include agents
local most, placing, keep = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now, homeless, only = now_ms(), {}, ARGV[4]

for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, most)) do
  local record = record_prefix .. id
  local have = redis.call('HMGET', record, 'owner', 'fence', 'wanted', 'bound')
  local owner, bound = have[1] or '', have[4] == '1'
  if not have[2] then
    redis.call('ZREM', leases, id)
    redis.call('ZREM', index, id)
    leave_host(id)
  elseif only == 'bound' and not bound or only == 'free' and owner ~= '' then -- guard: agent-reclaim-scope
    -- not now, or not by this caller
  elseif bound or have[3] ~= '1' then -- guard: agent-reclaim-wanted
    leave_host(id, owner)
    forget(id, 'stopped', keep)
  else
    local fence = have[2]
    if owner ~= '' then
      leave_host(id, owner) -- guard: agent-reclaim-leaves-host
      fence = tostring(redis.call('HINCRBY', record, 'fence', 1)) -- guard: agent-reclaim-raises-fence
      redis.call('HSET', record, 'status', 'placing', 'owner', '', 'address', '')
    end
    redis.call('ZADD', leases, now + placing, id) -- guard: agent-reclaim-lease
    local n = #homeless
    homeless[n + 1], homeless[n + 2], homeless[n + 3] = id, fence, owner
  end
end
return homeless
