-- Read whether runs have ended: for an ended run its whole record, for another one the id of its newest event, to wait for the next.
-- KEYS  per run: its record (hash), its feed (stream)
-- ARGV  the statuses that end a run
-- returns, per run: {'ended', {field, value, …}}, {'going', id of its newest event, 0-0 if there is none} or {'missing'}
local ends = {}
for _, status in ipairs(ARGV) do
  ends[status] = true
end

local function read_run(record, feed)
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
  found[#found + 1] = read_run(KEYS[i], KEYS[i + 1])
end
return found
