-- Move delayed runs that are due to a lane: to their own for the first time, to the first one if they come back.
-- KEYS  1-4 lanes (streams; the first is served first), 5 delayed (zset), 6 run prefix
-- ARGV  1 at most
-- returns { moved, ms until the next is due or -1 }
-- @include clock
-- @include feed
-- @include queued
local returned, delayed, run_prefix = KEYS[1], KEYS[5], KEYS[6]
local limit = tonumber(ARGV[1])

local now, moved = now_ms(), 0
local stamp = stamp_of(now)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, limit)) do
  local record = run_prefix .. id
  local have = redis.call('HMGET', record, 'status', 'lane', 'agent', 'message', 'attempt')
  if have[1] == 'delayed' then
    local lane = (tonumber(have[5]) or 0) > 0 and returned or have[2]
    local entry = queue_entry(lane, id, have[3], have[4], stamp)
    redis.call('HSET', record, 'status', 'queued', 'lane', lane, 'entry', entry)
    append_event(record, 'queued', '{}')
    moved = moved + 1
  end
  redis.call('ZREM', delayed, id)
end
local next_due = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
return { moved, next_due[2] and math.max(next_due[2] - now, 0) or -1 }
