-- What gauges show of a queue beside its depth; nothing is changed. Its cost grows with the number of consumers, not of runs.
-- KEYS  1-4 lanes (streams), 5 run prefix
-- ARGV  1 group
-- returns { entries in all lanes, ms since the idlest consumer was seen by any lane, ms since the longest running attempt began }
-- @include clock
-- @include entry
-- @include group
local run_prefix, group = KEYS[5], ARGV[1]
local LOOKED_AT = 10

local now = now_ms()
local length, idle, longest = 0, {}, 0

local function look_at_consumers(consumers)
  for _, info in ipairs(consumers) do
    local consumer = named(info)
    local name = consumer['name']
    idle[name] = math.min(idle[name] or consumer['idle'], consumer['idle'])
  end
end

-- When the attempt began that an entry stands for; nil if no attempt is under way by it.
local function begun_at(lane, entry)
  local found = redis.call('XRANGE', lane, entry, entry)[1]
  if not found then return nil end
  local id = valid_id(given_id(entry_fields(found[2]), entry), entry)
  local have = redis.pcall('HMGET', run_prefix .. id, 'status', 'entry', 'started_at')
  if have[1] == 'running' and have[2] == entry then return tonumber(have[3]) end
  return nil
end

-- Entries are delivered in the order of their ids, and claimed when they are delivered: of those that are held the first
-- has been running for longest. A few more are looked at: somebody may have deleted the first ones.
local function running_for(lane)
  for _, held in ipairs(redis.call('XPENDING', lane, group, '-', '+', LOOKED_AT)) do
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
    look_at_consumers(consumers)
    if entries > 0 then longest = math.max(longest, running_for(lane)) end
  end
end

local idlest = 0
for _, ms in pairs(idle) do idlest = math.max(idlest, ms) end
return { length, idlest, longest }
