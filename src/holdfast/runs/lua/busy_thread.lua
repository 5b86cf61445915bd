-- @include stopping
-- A run whose thread is busy waits. A run that preempts (interrupt, rollback) goes to the front of the waiting runs and stops the
-- run that has the thread. `at` has the keys that stop_run needs.
local PREEMPTS = { interrupt = true, rollback = true }

local function holders_of(limits, thread)
  return redis.call('ZRANGE', holding_of(limits, 'thread:' .. thread), 0, -1)
end

-- The rollback is stored for the thread's next run, not for the run that preempts, which may be stopped before it begins.
local function add_rollback(at, thread, other)
  local pending = at.limits:sub(1, -7) .. 'rollbacks'
  local others = redis.call('HGET', pending, thread)
  local rollback = other .. ' ' .. (read_fields(at.run_prefix .. other, 'submitted_at')[1] or '0')
  redis.call('HSET', pending, thread, others and others .. ' ' .. rollback or rollback)
end

local function wait_for_thread(at, record, id, thread, multitask, retention, channel, now)
  local preempts = PREEMPTS[multitask]
  local stopped = preempts and holders_of(at.limits, thread) or {}
  -- A run that preempted before and still waits is stopped too: the last one replaces all before it.
  local earlier = preempts and redis.call('ZRANGEBYSCORE', parked_of(at.limits, 'thread:' .. thread), '-inf', '(0') or {}
  for _, other in ipairs(earlier) do stopped[#stopped + 1] = other end
  park(at.limits, 'thread:' .. thread, record, id, next_place(at.limits, now), preempts)
  for _, other in ipairs(stopped) do
    if multitask == 'rollback' then add_rollback(at, thread, other) end
    stop_run(at, other, multitask .. ' by run ' .. id .. ' of the same thread', retention, channel, now)
  end
end
