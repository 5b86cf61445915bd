-- @include stopping
-- What a run does when it finds its thread busy: it waits, and one that interrupts or rolls back goes to the front and stops
-- whoever has the thread. `at` are the places of stop_run.
local PUSHY = { interrupt = true, rollback = true }

local function holders_of(limits, thread)
  return redis.call('ZRANGE', holding_of(limits, 'thread:' .. thread), 0, -1)
end

-- What a thread owes to its next run: whose writes to undo first. Not that run's own, which may be stopped before it begins.
local function owe_rollback(at, thread, other)
  local debts = at.limits:sub(1, -7) .. 'rollbacks'
  local owed = redis.call('HGET', debts, thread)
  local debt = other .. ' ' .. (read_fields(at.run_prefix .. other, 'submitted_at')[1] or '0')
  redis.call('HSET', debts, thread, owed and owed .. ' ' .. debt or debt)
end

local function wait_for_thread(at, record, id, thread, multitask, retention, channel, now)
  local pushes = PUSHY[multitask]
  local stopped = pushes and holders_of(at.limits, thread) or {}
  -- Whoever pushed before and still waits is stopped too: the last one to push is the one that is wanted.
  local pushers = pushes and redis.call('ZRANGEBYSCORE', parked_of(at.limits, 'thread:' .. thread), '-inf', '(0') or {}
  for _, other in ipairs(pushers) do stopped[#stopped + 1] = other end
  park(at.limits, 'thread:' .. thread, record, id, next_place(at.limits, now), pushes)
  for _, other in ipairs(stopped) do
    if multitask == 'rollback' then owe_rollback(at, thread, other) end
    stop_run(at, other, multitask .. ' by run ' .. id .. ' of the same thread', retention, channel, now)
  end
end
