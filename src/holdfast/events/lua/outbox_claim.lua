-- Take lines of one sink that are due, each for one owner under a new fence, with their next events.
-- Records and feeds are named by what is read, so they can't be declared: they share the queue's hash tag.
-- KEYS  1 lines of the sink (zset: run -> when to look, ms), 2 run prefix, 3 undelivered (stream)
-- ARGV  1 owner, 2 ttl ms, 3 how many to look at, 4 sink, 5 how many undelivered are kept
-- returns { Redis TIME in ms, how many were looked at, then rows:
--   { line, run, fence, position of the last event dealt with, tries, refusals, failing since ms, address, submitted_at,
--     then per event: id, type, data }
--   { gone, run, sink }: it left before all was delivered, which is noted among the undelivered }
-- @include clock
-- @include line
local lines, run_prefix, undelivered = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, room, sink, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local REPLY_BYTES = 2097152

local now = now_ms()
local rows, bytes = { now, 0 }, 0

local function take(run)
  local record = run_prefix .. run
  local have = redis.pcall('HMGET', record, 'status', 'submitted_at', sink)
  if have.err or not have[1] then
    redis.call('ZREM', lines, run)
    note_gone(undelivered, most, run, sink)
    return { 'gone', run, sink }
  end
  local line = read_line(record, sink)
  line.fence, line.owner = line.fence + 1, owner
  local row = { 'line', run, line.fence, line.sequence, line.tries, line.refusals, string.format('%d', line.since),
    have[3] or '', have[2] or '' }
  local head = #row
  bytes = bytes + events_after(record, line.cursor, row)
  if #row == head then
    redis.call('ZREM', lines, run)
    return nil
  end
  write_line(record, sink, line)
  redis.call('ZADD', lines, now + ttl, run)
  return row
end

for _, run in ipairs(redis.call('ZRANGEBYSCORE', lines, '-inf', now, 'LIMIT', 0, room)) do
  if bytes > REPLY_BYTES then break end
  rows[2] = rows[2] + 1
  rows[#rows + 1] = take(run)
end
return rows
