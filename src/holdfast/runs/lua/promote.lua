-- Queue delayed runs that are due: in their own lane for the first attempt, in the returned lane for a retry. A run that was
-- submitted to interrupt or roll back its thread preempts now, when it could start.
-- KEYS  1-4 lanes (streams; the first is served first), 5 delayed (zset), 6 run prefix, 7 ended (zset), 8 limits (set),
--       9 unarchived (list)
-- ARGV  1 how many at most, 2 retention ms, 3 control channel
-- returns { promoted, ms until the next is due or -1 }
-- @include attempt
-- @include clock
-- @include place
-- @include busy_thread
-- @include record
local returned, delayed, run_prefix, limits = KEYS[1], KEYS[5], KEYS[6], KEYS[8]
local limit, retention, channel = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local keys = { returned = returned, delayed = delayed, ended = KEYS[7], limits = limits, run_prefix = run_prefix,
  unarchived = KEYS[9] }

local now, moved = now_ms(), 0
local stamp = stamp_of(now)

-- Returns whether the run waits for its thread now. A run preempts once, at its first attempt: a retry already has the thread.
local function preempts_in(record, id, thread, multitask)
  if not PREEMPTS[multitask] then return false end -- guard: delayed-interrupt
  redis.call('HDEL', record, 'multitask')
  if take_permit(limits, 'thread:' .. thread, 1, record, id, now) then return false end
  append_event(record, 'queued', '{}')
  wait_for_thread(keys, record, id, thread, multitask, retention, channel, now)
  return true
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, limit)) do
  local record = run_prefix .. id
  local have = read_fields(record, 'status', 'lane', 'agent', 'message', 'attempt', 'thread', 'multitask', 'fence')
  -- The run leaves the set first: an interrupting run of the same batch may stop it.
  redis.call('ZREM', delayed, id)
  if have[1] == 'delayed' then
    moved = moved + 1
    if not preempts_in(record, id, have[6], have[7]) then
      local comes_back = attempt_of(have[8], have[5]) > 0 or not is_lane[have[2]] -- guard: returned-run-lane
      local lane = comes_back and returned or have[2]
      local entry = queue_entry(lane, id, have[3], have[4], stamp)
      redis.call('HSET', record, 'status', 'queued', 'lane', lane, 'entry', entry)
      append_event(record, 'queued', '{}')
    end
  end
end
local next_due = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
return { moved, next_due[2] and math.max(next_due[2] - now, 0) or -1 }
