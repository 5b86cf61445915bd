-- Read the values of a queue's gauges beside its depth. The cost grows with the number of consumers, not of runs.
-- KEYS  1-4 lanes (streams), 5 run prefix
-- ARGV  1 group
-- returns { entries in all lanes, idle ms of the most idle consumer, ms since the longest running attempt began }
-- @include clock
-- @include entry
-- @include group
local run_prefix, group = KEYS[5], ARGV[1]
local READ_MOST = 10

local now = now_ms()
local length, idle, longest = 0, {}, 0

local function note_idle(consumers)
  for _, info in ipairs(consumers) do
    local consumer = named(info)
    local name = consumer['name']
    idle[name] = math.min(idle[name] or consumer['idle'], consumer['idle'])
  end
end

-- Returns when the attempt of an entry's run began; nil if the entry has no running attempt.
local function begun_at(lane, entry)
  local found = redis.call('XRANGE', lane, entry, entry)[1]
  if not found then return nil end
  local id = valid_id(given_id(entry_fields(found[2]), entry), entry)
  local have = redis.pcall('HMGET', run_prefix .. id, 'status', 'entry', 'started_at')
  if have[1] == 'running' and have[2] == entry then return tonumber(have[3]) end
  return nil
end

-- Entries are delivered and claimed in the order of their ids: of the pending entries, the first has been running for
-- longest. A few more are read, because the first ones may have been deleted by hand.
local function running_for(lane)
  for _, held in ipairs(redis.call('XPENDING', lane, group, '-', '+', READ_MOST)) do
    local at = begun_at(lane, held[1])
    if at then return now - at end
  end
  return 0
end

for i = 1, 4 do
  local lane = KEYS[i]
  local entries = redis.call('XLEN', lane)
  length = length + entries
  local consumers = redis.pcall('XINFO', 'CONSUMERS', lane, group)
  if not consumers.err then -- else no worker has joined this lane yet
    note_idle(consumers)
    if entries > 0 then longest = math.max(longest, running_for(lane)) end
  end
end

local idlest = 0
for _, ms in pairs(idle) do idlest = math.max(idlest, ms) end
return { length, idlest, longest }
