-- @include feed
-- @include queued
-- Limits: how many runs of one thread, key, tenant or agent are running at once. A run that must wait is parked: it has no entry, no
-- slot and no lease, and is queued by the script that ends a holder. A permit belongs to a run, so it survives its worker.
-- Keys beside `limits`, the set of limits in use: `holding:<name>` and `parked:<name>` (zsets of run ids), `waiters` (set of all
-- parked runs), and `most` (hash: the value of each limit that runs wait for, as the last claiming worker has it).
local function holding_of(limits, name) return limits:sub(1, -7) .. 'holding:' .. name end
local function parked_of(limits, name) return limits:sub(1, -7) .. 'parked:' .. name end
local function most_of(limits) return limits:sub(1, -7) .. 'most' end
local function is_thread(name) return name:sub(1, 7) == 'thread:' end

-- Returns the stored name of a tenant's thread or key, as scope.py does.
local function scoped(tenant, name)
  if tenant == '' then return name end
  return tenant:gsub('%%', '%%25'):gsub('/', '%%2F') .. '/' .. name
end

-- Returns a limit's name as its tenant gave it.
local function shown_limit(record, name)
  local tenant, kind = redis.call('HGET', record, 'tenant'), name:match('^thread:') or name:match('^key:')
  if not tenant or not kind then return name end
  local owner = kind .. scoped(tenant, '')
  return name:sub(1, #owner) == owner and kind .. name:sub(#owner + 1) or name
end

-- Returns the permits that a record names; none if the field was overwritten. free.lua frees permits that are lost this way.
local function permits_of(text)
  local valid, decoded = pcall(cjson.decode, text or '') -- guard: damaged-permits
  local names = {}
  for _, name in ipairs(valid and type(decoded) == 'table' and decoded or {}) do
    if type(name) == 'string' then names[#names + 1] = name end
  end
  return names
end

local function note_permit(record, name)
  local permits = permits_of(redis.call('HGET', record, 'permits'))
  permits[#permits + 1] = name
  redis.call('HSET', record, 'permits', cjson.encode(permits), 'bound', '1')
end

-- A run's place among waiting runs is its time in thousandths of a millisecond, so that runs of one millisecond are ordered too.
-- It is taken from the run's entry; a run without an entry gets the place after the last one.
local function place_of_entry(entry)
  local ms, seq = entry:match('^(%d+)-(%d+)$')
  return tonumber(ms) * 1000 + math.min(tonumber(seq), 999) -- guard: parked-order
end

local function next_place(limits, now)
  local turns = limits:sub(1, -7) .. 'turns'
  local known = redis.pcall('GET', turns) -- what was written over it by hand is replaced
  known = type(known) == 'string' and #known <= 16 and tonumber(known:match('^%d+$') or nil) or 0 -- guard: damaged-turns
  local place = math.max(known + 1, now * 1000)
  redis.call('SET', turns, string.format('%.0f', place))
  return place
end

-- A run with a later place than the first parked run waits behind it, even if there is room; one with an earlier place does not.
local function take_permit(limits, name, most, record, id, now, place)
  local holding = holding_of(limits, name)
  local count = redis.call('ZCARD', holding)
  if redis.call('ZSCORE', holding, id) then
    if count <= most then return true end -- guard: lowered-limit
    redis.call('ZREM', holding, id) -- it was admitted when the limit was higher
    return false
  end
  if count >= most then return false end
  local first = redis.call('ZRANGE', parked_of(limits, name), 0, 0, 'WITHSCORES')[2]
  if first and not (place and place < tonumber(first)) then return false end -- guard: limit-queue-order
  redis.call('ZADD', holding, now, id)
  redis.call('SADD', limits, name)
  note_permit(record, name)
  return true
end

-- A run that preempts goes before all others. Scores are written with all digits: Lua would round them.
local PREEMPTING = -8e15
local function park(limits, name, record, id, place, preempts)
  redis.call('ZADD', parked_of(limits, name), string.format('%.0f', preempts and place + PREEMPTING or place), id)
  redis.call('SADD', limits, name)
  redis.call('SADD', limits:sub(1, -7) .. 'waiters', id)
  redis.call('HSET', record, 'status', 'queued', 'entry', '', 'parked', name, 'place', string.format('%.0f', place))
  append_event(record, 'parked', '{"limit":' .. cjson.encode(shown_limit(record, name)) .. '}')
end

-- The limit of a thread is always 1; the others are in the app and the settings of each worker.
local function set_most(limits, name, n)
  if not is_thread(name) then redis.call('HSET', most_of(limits), name, n) end
end

-- The first waiting run gets the permit already when it is queued, so that no other run overtakes it.
local function admit_next(limits, name, lane, run_prefix, now)
  local parked, holding = parked_of(limits, name), holding_of(limits, name)
  local first = redis.call('ZPOPMIN', parked)[1]
  while first do
    local record = run_prefix .. first
    redis.call('SREM', limits:sub(1, -7) .. 'waiters', first)
    -- guard: parked-damaged-record
    local have = redis.pcall('HMGET', record, 'parked', 'agent', 'message') -- an overwritten record is skipped
    if have[1] == name then
      redis.call('ZADD', holding, now, first)
      note_permit(record, name)
      local entry = queue_entry(lane, first, have[2], have[3], stamp_of(now))
      redis.call('HSET', record, 'parked', '', 'lane', lane, 'entry', entry)
      append_event(record, 'unparked', '{"limit":' .. cjson.encode(shown_limit(record, name)) .. '}')
      return true
    end
    first = redis.call('ZPOPMIN', parked)[1]
  end
  redis.call('HDEL', most_of(limits), name)
  if redis.call('EXISTS', holding) == 0 then redis.call('SREM', limits, name) end
  return false
end

-- Admits waiting runs while there is room: several if the limit was raised, none if it was lowered. One call admits at most 100,
-- so the runs of a removed limit are admitted in parts.
local function admit(limits, name, lane, run_prefix, now)
  local n = not is_thread(name) and tonumber(redis.call('HGET', most_of(limits), name) or nil) or 1
  for _ = 1, 100 do
    -- guard: limit-at-release
    if redis.call('ZCARD', holding_of(limits, name)) >= n or not admit_next(limits, name, lane, run_prefix, now) then return end
  end
end

-- A run that only pauses keeps its thread: the next run of a conversation must not overtake it. `keeps` names other permits that
-- it keeps.
local function release_permits(limits, record, id, permits, lane, run_prefix, now, pauses, keeps)
  if not permits or permits == '' then return end
  local kept = {}
  for _, name in ipairs(permits_of(permits)) do
    if pauses and is_thread(name) or keeps and keeps[name] then -- guard: retry-keeps-thread
      kept[#kept + 1] = name
    elseif redis.call('ZREM', holding_of(limits, name), id) == 1 then
      admit(limits, name, lane, run_prefix, now)
    end
  end
  redis.call('HSET', record, 'permits', kept[1] and cjson.encode(kept) or '')
end
