-- Settle any attempt. settle_plain.lua writes the same for plain runs.

-- Adds the dead letter, with the fields that a replay needs after the record has expired: also the fence, which must grow.
local function dead_letter(record, id, status, error, reason)
  local have = redis.call('HMGET', record, 'agent', 'attempt', 'message', 'fence', 'thread')
  local entry = redis.call('XADD', deadletter, '*', 'run_id', id, 'agent_id', have[1] or '', 'status', status,
    'reason', reason, 'attempts', attempt_of(have[4], have[2]), 'error', error, 'message_data', have[3] or '', 'fence', have[4],
    'thread', have[5] or '')
  redis.call('HSET', record, 'dead', entry)
end

-- Pauses a run until it is due (delayed) or has its answer (interrupted).
local function pause_run(record, id, status, field, value, extra, event, data)
  local when, at = 'interrupts', extra
  if status == 'delayed' then
    when, at = 'due_at', now + tonumber(extra)
    redis.call('ZADD', delayed, at, id)
  else
    publish_event(record, event, status, data)
  end
  redis.call('HSET', record, 'status', status, 'owner', '', field, value, when, at, 'entry', '')
end

local function end_run(record, id, status, field, value, reason, event, data)
  if not followed or followed[record] then publish_event(record, event, status, data) end
  end_record(record, status, field, value)
  if status == 'failed' or status == 'timed_out' then dead_letter(record, id, status, value, reason) end
  if status == 'succeeded' then
    batched[#batched + 1] = id
  else
    expiries[#expiries + 1] = expires_at
    expiries[#expiries + 1] = id
    single[#single + 1] = id
  end
end

local function settle_one(at, status, field, extra, lane, fence, with_data)
  local id, entry, value = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local data = with_data and ARGV[at + 3] or '{"' .. field .. '":' .. value .. '}'
  local record = run_prefix .. id
  local have = read_fields(record, 'owner', 'fence')
  if have[2] ~= fence then return 'stale' end -- guard: settle-fence
  if have[1] ~= owner then return have[1] == '' and 'already' or 'stale' end -- guard: settle-again

  local permits, outbox = false, false
  if not lane then
    lane, entry, permits, outbox = unpack(redis.call('HMGET', record, 'lane', 'entry', 'permits', 'outbox'))
    -- guard: settle-known-place
    if not is_place(lane, entry) then return 'damaged' end -- before anything is written
  end
  local cancelled = PAUSES[status] and redis.call('HGET', record, 'cancel')
  if cancelled then -- guard: settle-cancelled
    -- The run was cancelled while this attempt ran: it must not be retried, and needs no answer.
    status, data = 'cancelled', cjson.encode({ reason = cancelled })
    if field == 'interrupt' then field, value = 'error', cjson.encode({ kind = 'cancelled', message = cancelled }) end
  end
  local pauses, event = PAUSES[status], append_event(record, EVENTS[status] or status, data, outbox)
  local finish = pauses and pause_run or end_run
  finish(record, id, status, field, value, extra, event, data)
  if permits then release_permits(limits, record, id, permits, returned, run_prefix, now, pauses) end
  finish_entry(lane, entry, pauses or deletes)
  return cancelled and 'cancelled' or 'settled'
end
