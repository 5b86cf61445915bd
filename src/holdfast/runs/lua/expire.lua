-- Remove ended runs whose time is over: record, feed and their place in the index, a page at a time.
-- A run that lives under the same id again, because somebody deleted its record, only loses the note that it had ended;
-- one whose events have not all reached the outside stays until they have.
-- KEYS  1 ended (zset), 2 runs (zset), 3 run prefix, 4 outbox (zset; others of it by sink), 5 unarchived (zset)
-- ARGV  1 how many to look at, 2 '1' to look only
-- returns { looked at, left or would leave }
-- @include clock
local ended, index, run_prefix, outbox, unarchived = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local LATER_MS, ARCHIVE_MS = 60000, 86400000
local LIVE = { queued = true, delayed = true, running = true, interrupted = true }

-- Lines of a run that wait for their receiver stand in the outbox of its sink.
local function goes_outside(id)
  if not redis.call('HGET', run_prefix .. id, 'outbox') then return false end
  for _, sink in ipairs({ '', ':eventapi', ':webhook', ':push' }) do
    if redis.call('ZSCORE', outbox .. sink, id) then return true end
  end
  return false
end

local now = now_ms()

-- One that the store does not have yet stays a day longer at most: there may be no janitor at all.
local function waits_for_archive(id)
  local due = redis.call('ZSCORE', unarchived, id)
  return due and now < tonumber(due) + ARCHIVE_MS
end

if ARGV[2] == '1' then return { 0, redis.call('ZCOUNT', ended, '-inf', now) } end
local ids = redis.call('ZRANGEBYSCORE', ended, '-inf', now, 'LIMIT', 0, tonumber(ARGV[1]))
local keys, gone, seen = {}, {}, {}
for _, id in ipairs(ids) do
  local record = run_prefix .. id
  if goes_outside(id) or waits_for_archive(id) then
    redis.call('ZADD', ended, now + LATER_MS, id)
  else
    seen[#seen + 1] = id
    if not LIVE[redis.call('HGET', record, 'status')] then
      keys[#keys + 1] = record
      keys[#keys + 1] = record .. ':events'
      gone[#gone + 1] = id
    end
  end
end
if seen[1] then redis.call('ZREM', ended, unpack(seen)) end
if gone[1] then
  redis.call('UNLINK', unpack(keys))
  redis.call('ZREM', index, unpack(gone))
  redis.call('ZREM', unarchived, unpack(gone))
end
return { #ids, #gone }
