-- @include clock
-- The agents of all hosts: what should run, where it does, under which fence.
--   leases (zset)            agent -> until when its host, or whoever looks for one, has it (ms)
--   index (zset)             every agent that should run -> since when (ms)
--   agent:<id> (hash)        wanted, status, owner (its host), address, fence, and what it is made of
--   agent_location:<id>      "host:port" while it runs, with a ttl; host_agents:<host> (set) is its other side
local leases, index, record_prefix, location_prefix, host_prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- Nobody finds it there any more.
local function leave_host(id, host)
  redis.call('DEL', location_prefix .. id)
  if host and host ~= '' then redis.call('SREM', host_prefix .. host, id) end
end

local function be_at(id, host, address, ttl)
  redis.call('SET', location_prefix .. id, address, 'PX', ttl)
  redis.call('SADD', host_prefix .. host, id)
end

-- What it was can be read for a while.
local function forget(id, status, keep)
  redis.call('ZREM', leases, id)
  redis.call('ZREM', index, id)
  redis.call('HSET', record_prefix .. id, 'status', status, 'owner', '', 'address', '', 'wanted', '0')
  redis.call('PEXPIRE', record_prefix .. id, keep)
end
