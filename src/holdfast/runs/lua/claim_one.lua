-- Claim any run. claim_plain.lua writes the same for plain runs.
-- @include claim_adopt
-- @include claim_limits

-- Returns the optional fields of a run, which are read only if its record has any (`bound`).
local NO_EXTRA = { outbox = false }
local function extra_fields_of(record, bound)
  if not bound then return NO_EXTRA end
  local have = redis.call('HMGET', record, 'thread', 'tenant', 'key', 'outbox', 'cancel', 'place')
  local place = is_count(have[6]) and tonumber(have[6]) or nil
  return { thread = have[1], tenant = have[2], key = have[3], outbox = have[4], cancel = have[5], place = place }
end

-- Adds the runs of the thread to roll back before this run. Each attempt gets them, as an earlier one may have died before.
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

-- Ends a cancelled run under a higher fence, so that a worker that still holds it (after its group was recreated) can't end it too.
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

-- Whether an entry is a producer's answer to an interrupted run: it has the run's id and the action RESUME.
local function is_answer(status, written)
  if status ~= 'interrupted' or not (written or ''):find('"RESUME"', 1, true) then return false end
  local decoded, envelope = pcall(cjson.decode, written)
  return decoded and type(envelope) == 'table' and envelope['action'] == 'RESUME' -- guard: resume-action
end

-- Returns id, agent (empty without one), message (nil without one) and, of a foreign entry, all its fields by name.
local function parts_of(fields, entry)
  if is_ours(fields) then return own_id(fields[10], entry), fields[4], fields[2] end
  local named = entry_fields(fields)
  return given_id(named, entry), named['agent_id'] or '', named['message_data'], named
end

-- Returns the default agent for a run without an agent, and stores it in the record.
local function default_for(record)
  if default_agent ~= '' then redis.call('HSET', record, 'agent', default_agent) end
  return default_agent
end

-- Returns the generation of an attempt in a thread: higher than that of each attempt before it, by which the store refuses late writes.
local function generation_of(extra_fields)
  if not extra_fields.thread or extra_fields.thread == '' then return '' end
  return string.format(' %.0f', next_place(limits, clock)) -- guard: thread-generation
end

-- `seen` has the fields of the record that the tenth field of the entry names, if they were read already.
local function claim_one(number, lane, entry, fields, seen)
  local id, agent, written, named = parts_of(fields, entry)
  local message = written or cjson.encode(named)
  local record = run_prefix .. id
  local have = id == fields[10] and seen or look_up(record)
  if not have[1] then
    -- A key of that name may have another type: then the record is named by the entry's id.
    id = have.err and 'entry-' .. entry or valid_id(id, entry)
    record = run_prefix .. id
    have = look_up(record)
    if not have[1] then have = adopt(record, id, lane, entry, agent, message, written) end
  end
  local status, same = have[1], have[3] == entry and have[2] == lane
  local answered = is_answer(status, written)
  if answered then
    local run = redis.call('HMGET', record, 'agent', 'message', 'interrupts')
    resume_run(returned, record, id, run, 'envelope', written, '', clock)
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
  -- Only a run that was started before has an attempt to count on from.
  local fence, attempt = 1, 1
  if have[4] then
    fence, attempt = counted(have[4]) + 1, attempt_of(have[4], redis.call('HGET', record, 'attempt')) + 1 -- guard: attempt-counted-at-claim
    redis.call('HSET', record, 'attempt', digits(attempt))
  end
  begin(record, digits(fence))
  append_event(record, 'started', started(digits(attempt), digits(fence)), extra_fields.outbox)
  take_rollbacks(record, id, extra_fields.thread)
  local submitted_at = (have[5] or '0') .. generation_of(extra_fields)
  add_claimed(bound and 0 or number, fence, attempt, agent, id, entry, submitted_at, message) -- guard: claim-bound-number
  room = room - 1
end
