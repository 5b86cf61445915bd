-- Read how much work a queue holds, over all lanes, in one call.
-- KEYS  1-4 lanes (streams), 5 delayed (zset), 6 dead letters (stream), 7 gate (hash)
-- ARGV  1 group, 2 deletes ('1' if acked entries are deleted), 3 '1' to count the consumers, which is slow
-- returns { undelivered, pending, delayed, due, dead, oldest undelivered ms, consumers, 1 if paused }
-- @include clock
-- @include depth
local delayed, deadletter, gate = KEYS[5], KEYS[6], KEYS[7]
local group, deletes, counting = ARGV[1], ARGV[2] == '1', ARGV[3] == '1'

local now = now_ms()
local undelivered, pending, oldest, names, consumers = 0, 0, 0, {}, 0

-- Each lane is counted alone: pending entries that were deleted by hand in one must not hide waiting entries of another.
-- If no entry follows the one delivered last, none waits: the others were acked by a client that did not delete them.
local function add_lane(lane)
  local info = group_of(lane, group)
  local held = info and info['pending'] or 0
  pending = pending + held
  local first = redis.call('XRANGE', lane, info and '(' .. info['last-delivered-id'] or '-', '+', 'COUNT', 1)[1]
  if not first then return end
  undelivered = undelivered + math.max(lane_depth(lane, group, deletes) - held, 1)
  oldest = math.max(oldest, now - tonumber(first[1]:match('^%d+')))
end

local function count_consumers(lane)
  local found = redis.pcall('XINFO', 'CONSUMERS', lane, group)
  if found.err then return end -- no lane, or no group
  for _, consumer in ipairs(found) do
    if not names[consumer[2]] then
      names[consumer[2]] = true
      consumers = consumers + 1
    end
  end
end

for i = 1, 4 do
  local lane = KEYS[i]
  if redis.call('XLEN', lane) > 0 then
    add_lane(lane)
  else
    -- Entries that were deleted by hand while a worker held them are pending, and not in the stream.
    local held = redis.pcall('XPENDING', lane, group)
    if not held.err then pending = pending + held[1] end
  end
  if counting then count_consumers(lane) end
end
return { undelivered, pending, redis.call('ZCARD', delayed),
  redis.call('ZCOUNT', delayed, '-inf', now), redis.call('XLEN', deadletter), oldest, consumers,
  redis.call('HGET', gate, 'mode') == 'paused' and 1 or 0 }
