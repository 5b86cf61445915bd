-- @include clock
-- The agents of all hosts: the wanted agents, their locations and their fences.
--   leases (zset)            agent -> end of the lease of its host, or of the caller that places it (ms)
--   index (zset)             every agent that should run -> since when (ms)
--   agent:<id> (hash)        wanted, status, owner (its host), address, fence, and its specification
--   agent_location:<id>      "host:port" while it runs, with a ttl; host_agents:<host> (set) is its reverse index
local leases, index, record_prefix, location_prefix, host_prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- Remove the location of an agent.
local function leave_host(id, host)
  redis.call('DEL', location_prefix .. id)
  if host and host ~= '' then redis.call('SREM', host_prefix .. host, id) end
end

local function be_at(id, host, address, ttl)
  redis.call('SET', location_prefix .. id, address, 'PX', ttl)
  redis.call('SADD', host_prefix .. host, id)
end

-- Remove an agent; its record is kept for a while.
local function forget(id, status, keep)
  redis.call('ZREM', leases, id)
  redis.call('ZREM', index, id)
  redis.call('HSET', record_prefix .. id, 'status', status, 'owner', '', 'address', '', 'wanted', '0')
  redis.call('PEXPIRE', record_prefix .. id, keep)
end
