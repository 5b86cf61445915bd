-- End a batch of attempts, each once and only under the fence it ran under: result or error, event, ack and delete together.
-- KEYS  1-4 lanes (streams), 5 delayed (zset), 6 dead letters (stream), 7 run prefix
-- ARGV  1 group, 2 owner, 3 deletes ('1' if acked entries are deleted), 4 retention ms,
--       then per run: id, fence, status (succeeded | failed | timed_out | cancelled | delayed), value field (result | error),
--       value (JSON), event data (JSON), delay ms (delayed) or reason (failed, timed_out)
-- returns, per run: settled | cancelled (instead of delayed) | already (this fence settled before: a reply was lost) | stale
-- @include clock
-- @include feed
local delayed, deadletter, run_prefix = KEYS[5], KEYS[6], KEYS[7]
local group, owner, deletes, retention = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]
local STRIDE = 7
local EVENTS = { delayed = 'retrying' }

local now = now_ms()
local finished_at = string.format('%d', now)

-- Entries are acked and deleted together at the end, one call for each lane.
local acked, deleted = {}, {}

local function put(lists, lane, entry)
  local list = lists[lane]
  if not list then
    list = {}
    lists[lane] = list
  end
  list[#list + 1] = entry
end

local function finish_entry(lane, entry, delete)
  put(acked, lane, entry)
  if delete then put(deleted, lane, entry) end
end

-- A letter has all that a replay needs after its record has expired: also the fence, which must go on growing.
local function bury(record, id, status, error, reason)
  local have = redis.call('HMGET', record, 'agent', 'attempt', 'message', 'fence', 'thread')
  local entry = redis.call('XADD', deadletter, '*', 'run_id', id, 'agent_id', have[1] or '', 'status', status,
    'reason', reason, 'attempts', have[2] or 0, 'error', error, 'message_data', have[3] or '', 'fence', have[4],
    'thread', have[5] or '')
  redis.call('HSET', record, 'dead', entry)
end

local function settle(at)
  local id, fence, status, field, value = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local data, extra = ARGV[at + 5], ARGV[at + 6]
  local record = run_prefix .. id
  local have = redis.call('HMGET', record, 'owner', 'fence', 'lane', 'entry')
  if have[2] ~= fence then return 'stale' end
  if have[1] ~= owner then return have[1] == '' and 'already' or 'stale' end

  local reason = status == 'delayed' and redis.call('HGET', record, 'cancel')
  if reason then
    -- Nobody wants it tried again: the cancel came while this attempt failed.
    status, data = 'cancelled', cjson.encode({ reason = reason })
  end
  finish_entry(have[3], have[4], deletes or status == 'delayed')
  append_event(record, EVENTS[status] or status, data)
  if status == 'delayed' then
    local due = now + tonumber(extra)
    redis.call('HSET', record, 'status', status, 'owner', '', field, value, 'due_at', due, 'entry', '')
    redis.call('ZADD', delayed, due, id)
    return 'settled'
  end
  redis.call('HSET', record, 'status', status, 'owner', '', field, value, 'finished_at', finished_at)
  if status == 'failed' or status == 'timed_out' then
    bury(record, id, status, value, extra)
  end
  redis.call('PEXPIRE', record, retention)
  redis.call('PEXPIRE', record .. ':events', retention)
  return reason and 'cancelled' or 'settled'
end

local words = {}
for at = 5, #ARGV, STRIDE do words[#words + 1] = settle(at) end
for lane, entries in pairs(acked) do redis.call('XACK', lane, group, unpack(entries)) end
for lane, entries in pairs(deleted) do redis.call('XDEL', lane, unpack(entries)) end
return words
