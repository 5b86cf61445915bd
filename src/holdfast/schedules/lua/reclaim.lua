-- Take schedules away from owners that stopped renewing: back to their original turn, under a higher fence.
-- KEYS  1 waiting (zset), 2 working (zset), 3 leases (zset), 4 definitions (hash), 5 record prefix
-- ARGV  1 at most
-- returns, per schedule: name, who had it, reclaimed | removed (nobody defines it any more)
-- @include state
local waiting, working, leases, definitions, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local limit = tonumber(ARGV[1])

local clock = now_us()
local reply = {}

local function reclaim(name)
  local record = prefix .. name
  redis.call('ZREM', leases, name)
  redis.call('ZREM', working, name)
  local have = read_record(record, 'owner', 'fence', 'ready', 'paused_since', 'cadence', 'replan', 'reclaimed')
  if redis.call('HEXISTS', definitions, name) == 0 then -- guard: schedule-reclaim-defined
    forget_record(record)
    return have[1] or '', 'removed'
  end
  -- guard: schedule-reclaim-raises-fence
  redis.call('HSET', record, 'fence', raise_fence(have[2], clock), 'owner', '', 'reclaimed', (tonumber(have[7]) or 0) + 1)
  come_back(waiting, record, name, have[3] or as_score(clock / 1000000), have[4], have[5], have[6])
  return have[1] or '', 'reclaimed'
end

-- guard: schedule-reclaim-by-lease
for _, name in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', math.floor(clock / 1000), 'LIMIT', 0, limit)) do
  local n = #reply
  reply[n + 1] = name
  reply[n + 2], reply[n + 3] = reclaim(name)
end
return reply
