-- How much work a queue holds, over all lanes, in one call.
-- KEYS  1-4 lanes (streams), 5 delayed (zset), 6 dead letters (stream)
-- ARGV  1 group, 2 deletes ('1' if acked entries are deleted)
-- returns { undelivered, pending, delayed, due, dead, oldest undelivered ms, workers }
-- @include clock
-- @include depth
local delayed, deadletter = KEYS[5], KEYS[6]
local group, deletes = ARGV[1], ARGV[2] == '1'

local now = now_ms()
local total, pending, oldest, names, workers = 0, 0, 0, {}, 0

local function note_oldest(lane, after)
  local first = redis.call('XRANGE', lane, after, '+', 'COUNT', 1)[1]
  if first then oldest = math.max(oldest, now - tonumber(first[1]:match('^%d+'))) end
end

local function look(lane)
  local info = group_of(lane, group)
  if not info then return note_oldest(lane, '-') end
  pending = pending + info['pending']
  note_oldest(lane, '(' .. info['last-delivered-id'])
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', lane, group)) do
    if not names[consumer[2]] then
      names[consumer[2]] = true
      workers = workers + 1
    end
  end
end

for i = 1, 4 do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    total = total + lane_depth(KEYS[i], group, deletes)
    look(KEYS[i])
  end
end
return { total - pending, pending, redis.call('ZCARD', delayed), redis.call('ZCOUNT', delayed, '-inf', now),
  redis.call('XLEN', deadletter), oldest, workers }
