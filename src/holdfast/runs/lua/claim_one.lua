-- Any run, whatever its record says. claim_plain.lua writes the same for those that are plain.
-- @include claim_adopt
-- @include claim_limits

-- The optional fields of a run, read only if its record says that there are some (`bound`).
local NO_EXTRA = { outbox = false }
local function extra_fields_of(record, bound)
  if not bound then return NO_EXTRA end
  local have = redis.call('HMGET', record, 'thread', 'tenant', 'key', 'outbox', 'cancel', 'place')
  local place = is_count(have[6]) and tonumber(have[6]) or nil
  return { thread = have[1], tenant = have[2], key = have[3], outbox = have[4], cancel = have[5], place = place }
end

-- The runs of the thread to roll back first. Every attempt does so until the run has ended: the first one may die before.
local function take_rollbacks(record, id, thread)
  if not thread or thread == '' then return end
  local pending = limits:sub(1, -7) .. 'rollbacks'
  local mine, new = redis.call('HGET', record, 'rollback'), redis.call('HGET', pending, thread)
  if new then
    mine = mine and mine .. ' ' .. new or new
    redis.call('HDEL', pending, thread)
    redis.call('HSET', record, 'rollback', mine)
  end
  if mine then
    undo[#undo + 1] = id
    undo[#undo + 1] = mine
  end
end

-- Under a higher fence: whoever may still hold it, because its group was made anew, must not end it once more.
local function end_cancelled(record, id, reason, fence)
  local data = cjson.encode({ reason = reason })
  redis.call('HSET', record, 'status', 'cancelled', 'finished_at', now, 'owner', '', 'fence', digits(counted(fence) + 1))
  redis.call('RPUSH', unarchived, now .. ' ' .. id)
  publish_event(record, append_event(record, 'cancelled', data), 'cancelled', data)
  release_permits(limits, record, id, redis.call('HGET', record, 'permits'), returned, run_prefix, clock)
end

local function drop(lane, entry, id, leaves)
  drop_entry(lane, group, entry)
  if leaves then redis.call('ZADD', ended, clock + retention, id) end
  dropped = dropped + 1
end

-- A producer answers an interrupted run by an entry of the same id that says RESUME; the envelope is kept as it came.
local function answers(status, written)
  if status ~= 'interrupted' or not (written or ''):find('"RESUME"', 1, true) then return false end
  local fine, envelope = pcall(cjson.decode, written)
  return fine and type(envelope) == 'table' and envelope['action'] == 'RESUME' -- guard: resume-action
end

-- Returns id, agent (empty if it names none), message (nil if it has none) and, of anybody else's entry, all its fields by name.
local function parts_of(fields, entry)
  if is_ours(fields) then return own_id(fields[10], entry), fields[4], fields[2] end
  local named = entry_fields(fields)
  return given_id(named, entry), named['agent_id'] or '', named['message_data'], named
end

-- A run that names no agent: the record has to learn which one it is begun with, also one that has waited since before there was any.
local function default_for(record)
  if default_agent ~= '' then redis.call('HSET', record, 'agent', default_agent) end
  return default_agent
end

-- Each attempt of a thread has a higher one than the attempt before, of whichever run: the store goes by it.
local function generation_of(extra_fields)
  if not extra_fields.thread or extra_fields.thread == '' then return '' end
  return string.format(' %.0f', next_place(limits, clock)) -- guard: thread-generation
end

-- `seen` is what the record says that the tenth field names, if it was looked up already.
local function claim_one(number, lane, entry, fields, seen)
  local id, agent, written, named = parts_of(fields, entry)
  local message = written or cjson.encode(named)
  local record = run_prefix .. id
  local have = id == fields[10] and seen or look_up(record)
  if not have[1] then
    -- Also if somebody keeps something else under that name: then the entry goes by its own.
    id = have.err and 'entry-' .. entry or valid_id(id, entry)
    record = run_prefix .. id
    have = look_up(record)
    if not have[1] then have = adopt(record, id, lane, entry, agent, message, written) end
  end
  local status, same = have[1], have[3] == entry and have[2] == lane
  local answered = answers(status, written)
  if answered then
    local run = redis.call('HMGET', record, 'agent', 'message', 'interrupts')
    go_on(returned, record, id, run, 'envelope', written, '', clock)
  end
  if not same or (status ~= 'queued' and status ~= 'running') then -- guard: claim-startable
    if not same and not answered then
      duplicates[#duplicates + 1] = id
      duplicates[#duplicates + 1] = entry
    end
    return drop(lane, entry, id, same and status == 'cancelled')
  end
  local extra_fields = extra_fields_of(record, have[6])
  if extra_fields.cancel then
    end_cancelled(record, id, extra_fields.cancel, have[4])
    return drop(lane, entry, id, true)
  end
  if agent == '' then agent = default_for(record) end -- guard: empty-agent-default
  local bound = have[6] or limited[agent]
  if bound and not admitted(record, id, lane, entry, extra_fields, agent) then return end
  -- Only one that was begun before has an attempt to be counted on from.
  local fence, attempt = 1, 1
  if have[4] then
    fence, attempt = counted(have[4]) + 1, attempt_of(have[4], redis.call('HGET', record, 'attempt')) + 1 -- guard: attempt-counted-at-claim
    redis.call('HSET', record, 'attempt', digits(attempt))
  end
  begin(record, digits(fence))
  append_event(record, 'started', started(digits(attempt), digits(fence)), extra_fields.outbox)
  take_rollbacks(record, id, extra_fields.thread)
  local submitted_at = (have[5] or '0') .. generation_of(extra_fields)
  answer(bound and 0 or number, fence, attempt, agent, id, entry, submitted_at, message) -- guard: claim-bound-number
  room = room - 1
end
