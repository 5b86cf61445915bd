-- Renew the leases of a host. A lease that expired but was not reclaimed is renewed too; a reclaimed agent must be stopped.
-- KEYS  as in agents
-- ARGV  1 host, 2 address, 3 ttl ms, then per agent: id, fence
-- returns, per agent: kept | unwanted (stop it, and release it) | lost (stop it) | forgotten (Redis has lost its record)
-- @include agents
local host, address, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now, words = now_ms(), {}

for i = 4, #ARGV, 2 do
  local id, word = ARGV[i], 'lost'
  -- A record that was overwritten by another type counts as lost: it must not fail the renewal of all other agents.
  local have = redis.pcall('HMGET', record_prefix .. id, 'owner', 'fence', 'wanted', 'status') -- guard: agent-renew-damaged-record
  -- Fences only rise: a lower fence than the host's means that Redis has lost its last writes.
  if have.err then word = 'lost'
  elseif not have[2] or tonumber(have[2]) < tonumber(ARGV[i + 1]) then -- guard: agent-renew-forgotten
    word = 'forgotten'
  elseif have[1] == host and have[2] == ARGV[i + 1] then -- guard: agent-renew-fence
    word = have[3] == '1' and 'kept' or 'unwanted' -- guard: agent-renew-unwanted
    redis.call('ZADD', leases, now + ttl, id)
    if have[4] == 'running' then be_at(id, host, address, ttl) end -- guard: agent-renew-location
  end
  words[#words + 1] = word
end
return words
