-- @include limits
-- @include record
-- Cancel a run: at once if it waits, by a request to its worker if it runs. An entry in a lane stays, and is dropped by the claim.
-- returns cancelled | requested | missing | the status it ended with before
local WAITS = { queued = true, delayed = true, interrupted = true }

local function stop_run(at, id, reason, retention, channel, now)
  local record = at.run_prefix .. id
  local have = read_fields(record, 'status', 'entry', 'parked', 'permits') -- guard: stop-damaged-record
  local status = have[1]
  if not status then return 'missing' end
  if status == 'running' then
    redis.call('HSET', record, 'cancel', reason, 'bound', '1')
    redis.pcall('PUBLISH', channel, 'cancel ' .. id .. ' ' .. reason)
    return 'requested'
  end
  if not WAITS[status] then return status end
  local data = cjson.encode({ reason = reason })
  redis.call('HSET', record, 'status', 'cancelled', 'cancel', reason, 'finished_at', now, 'parked', '')
  redis.call('RPUSH', at.unarchived, string.format('%d', now) .. ' ' .. id)
  publish_event(record, append_event(record, 'cancelled', data), 'cancelled', data)
  if status == 'delayed' then redis.call('ZREM', at.delayed, id) end
  if have[3] and have[3] ~= '' then
    redis.call('ZREM', parked_of(at.limits, have[3]), id)
    redis.call('SREM', at.limits:sub(1, -7) .. 'waiters', id)
  end
  if not have[2] or have[2] == '' then redis.call('ZADD', at.ended, now + retention, id) end
  release_permits(at.limits, record, id, have[4], at.returned, at.run_prefix, now) -- guard: stop-releases-permits
  return 'cancelled'
end
