-- Take schedules away from owners that stopped renewing: back to their original turn, under a higher fence.
-- KEYS  1 waiting (zset), 2 working (zset), 3 leases (zset), 4 definitions (hash), 5 record prefix
-- ARGV  1 at most, 2 turns that a history keeps
-- returns { keys thrown away }, then per schedule: name, who had it, reclaimed | removed (it is not defined any more)
-- @include state
-- @include turns
-- @include history
local waiting, working, leases, definitions, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local limit, kept = tonumber(ARGV[1]), tonumber(ARGV[2])

local clock = now_us()
local now = as_score(clock / 1000000)
local reply = { discarded }

-- The time that a turn stands for: of one that is a schedule of its own it is in the definition, the record has when it was placed.
local function planned_at(name, ready)
  if not schedule_of(name) then return ready end
  local read, spec = pcall(cjson.decode, redis.call('HGET', definitions, name) or '')
  local trigger = read and type(spec) == 'table' and spec.trigger
  return type(trigger) == 'table' and tonumber(trigger.at) or ready
end

local function note_lost(name, have, died)
  local of, fence = schedule_of(name) or name, tonumber(have[2])
  -- Without a fence its record was lost, and with it all that is to be listed.
  if not fence or redis.call('HEXISTS', definitions, of) == 0 then return end
  local ready, started = tonumber(have[3]) or tonumber(now), tonumber(have[8]) or tonumber(now)
  local turn = string.format('{"outcome":"lost","planned_at":%s,"started_at":%s,"duration_ms":%.3f,"attempt":%.0f%s}',
    as_score(planned_at(name, ready)), as_score(started), math.max(now - started, 0) * 1000, died + 1,
    have[5] and ',"manual":true' or '')
  add_to_history(prefix, of, kept, ended_turn(now, cjson.encode(have[1] or ''), string.format('%.0f', fence), turn))
end

local function reclaim(name)
  local record = prefix .. name
  redis.call('ZREM', leases, name)
  redis.call('ZREM', working, name)
  local have = read_record(record, 'owner', 'fence', 'ready', 'paused_since', 'cadence', 'replan', 'reclaimed',
    'acquired_at')
  if redis.call('HEXISTS', definitions, name) == 0 then -- guard: schedule-reclaim-defined
    forget_record(record)
    return have[1] or '', 'removed'
  end
  local died = tonumber(have[7]) or 0
  -- guard: schedule-reclaim-raises-fence
  redis.call('HSET', record, 'fence', raise_fence(have[2], clock), 'owner', '', 'reclaimed', died + 1)
  note_lost(name, have, died) -- guard: lost-turn-in-history
  come_back(waiting, record, name, have[3] or now, have[4], have[5], have[6])
  return have[1] or '', 'reclaimed'
end

-- guard: schedule-reclaim-by-lease
for _, name in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', math.floor(clock / 1000), 'LIMIT', 0, limit)) do
  local n = #reply
  reply[n + 1] = name
  reply[n + 2], reply[n + 3] = reclaim(name)
end
return reply
