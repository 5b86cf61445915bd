-- Cancel a run: at once if it waits, by asking its worker if it runs. An entry still in the stream stays as a tombstone.
-- KEYS  1 run (hash), 2 delayed (zset)
-- ARGV  1 run id, 2 reason, 3 retention ms, 4 control channel
-- returns cancelled | requested | missing | the status it ended with before
-- @include clock
-- @include feed
local record, delayed = KEYS[1], KEYS[2]
local id, reason, retention, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local status = redis.call('HGET', record, 'status')
if not status then return 'missing' end
if status == 'running' then
  redis.call('HSET', record, 'cancel', reason)
  redis.call('PUBLISH', channel, 'cancel ' .. id .. ' ' .. reason)
  return 'requested'
end
if status ~= 'queued' and status ~= 'delayed' then return status end
redis.call('HSET', record, 'status', 'cancelled', 'cancel', reason, 'finished_at', now_ms())
append_event(record, 'cancelled', cjson.encode({ reason = reason }))
if status == 'delayed' then
  redis.call('ZREM', delayed, id)
  redis.call('PEXPIRE', record, retention)
  redis.call('PEXPIRE', record .. ':events', retention)
end
return 'cancelled'
