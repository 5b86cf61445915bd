-- End a batch of attempts, each once and only under the fence it ran under: result or error, event, ack and delete together.
-- KEYS  1-4 lanes (streams), 5 delayed (zset), 6 dead letters (stream), 7 run prefix
-- ARGV  1 group, 2 owner, 3 deletes ('1' if acked entries are deleted), 4 retention ms,
--       then per run: id, fence, status (succeeded | failed | timed_out | cancelled | delayed), value field (result | error),
--       value (JSON), event data (JSON), delay ms (delayed) or reason (failed, timed_out)
-- returns, per run: settled | already (this fence settled before: a reply was lost) | stale
-- @include clock
-- @include feed
local delayed, deadletter, run_prefix = KEYS[5], KEYS[6], KEYS[7]
local group, owner, deletes, retention = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]
local STRIDE = 7
local EVENTS = { delayed = 'retrying' }

local now = now_ms()

local function bury(record, id, status, error, reason, have)
  local entry = redis.call('XADD', deadletter, '*', 'run_id', id, 'agent_id', have[6] or '', 'status', status,
    'reason', reason, 'attempts', have[7] or 0, 'error', error, 'message_data', have[8] or '',
    -- for a replay after the record has expired: it must not begin again at fence 1
    'fence', have[2], 'thread', have[9] or '')
  redis.call('HSET', record, 'dead', entry)
end

local function settle(at)
  local id, fence, status, field, value = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local data, extra = ARGV[at + 5], ARGV[at + 6]
  local record = run_prefix .. id
  local have = redis.call('HMGET', record, 'owner', 'fence', 'lane', 'entry', 'settled')
  if have[5] == fence then return 'already' end
  if have[1] ~= owner or have[2] ~= fence then return 'stale' end

  local lane, entry = have[3], have[4]
  redis.call('XACK', lane, group, entry)
  if deletes or status == 'delayed' then redis.call('XDEL', lane, entry) end
  append_event(record, EVENTS[status] or status, data)
  if status == 'delayed' then
    local due = now + tonumber(extra)
    redis.call('HSET', record, 'status', status, 'owner', '', 'settled', fence, field, value, 'due_at', due, 'entry', '')
    redis.call('ZADD', delayed, due, id)
    return 'settled'
  end
  redis.call('HSET', record, 'status', status, 'owner', '', 'settled', fence, field, value, 'finished_at', now)
  if status == 'failed' or status == 'timed_out' then
    bury(record, id, status, value, extra,
      redis.call('HMGET', record, 'owner', 'fence', 'lane', 'entry', 'settled', 'agent', 'attempt', 'message', 'thread'))
  end
  redis.call('PEXPIRE', record, retention)
  redis.call('PEXPIRE', record .. ':events', retention)
  return 'settled'
end

local words = {}
for at = 5, #ARGV, STRIDE do words[#words + 1] = settle(at) end
return words
