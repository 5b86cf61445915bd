-- Read whether runs have ended: all of the record of one that has; of another the id of its newest event, after which the end must come.
-- KEYS  per run: its record (hash), its feed (stream)
-- ARGV  the statuses that end a run
-- returns, per run: {'ended', {field, value, …}}, {'going', id of its newest event, 0-0 if there is none} or {'missing'}
local ends = {}
for _, status in ipairs(ARGV) do
  ends[status] = true
end

local function look(record, feed)
  local status = redis.call('HGET', record, 'status')
  if not status then
    return {'missing'}
  end
  if ends[status] then
    return {'ended', redis.call('HGETALL', record)}
  end
  local newest = redis.call('XREVRANGE', feed, '+', '-', 'COUNT', 1)[1]
  return {'going', newest and newest[1] or '0-0'}
end

local found = {}
for i = 1, #KEYS, 2 do
  found[#found + 1] = look(KEYS[i], KEYS[i + 1])
end
return found
