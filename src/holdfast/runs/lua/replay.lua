-- Queue an ended run again, from its first attempt; its dead letter, if it has one, is removed.
-- KEYS  1 lane (stream), 2 dead letters (stream), 3 run (hash), 4 runs (zset), 5 ended (zset), 6 outbox (zset), 7 letters (hash)
-- ARGV  1 run id, 2 dead letter id or '', 3 '1' if events of a run without a record are delivered to receivers,
--       4 default agent
-- returns replayed | missing | the status that can't be replayed
-- @include clock
-- @include feed
-- @include queued
local lane, deadletter, record, index, ended, letters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[7]
local id, letter = ARGV[1], ARGV[2]

local have = redis.call('HMGET', record, 'status', 'agent', 'message', 'dead')
local status, agent, message = have[1], have[2], have[3]
-- A letter that is not the run's last one has been replayed before.
if status and letter ~= '' and letter ~= have[4] then return 'missing' end
if letter == '' then letter = have[4] or '' end
local now = now_ms()

-- Restores tenant and receivers from the message, for a run whose record was deleted by hand, without its replay data.
local function read_from_message()
  local decoded, envelope = pcall(cjson.decode, message)
  if not decoded or type(envelope) ~= 'table' then return end
  if type(envelope.tenant) == 'string' and envelope.tenant ~= '' then
    redis.call('HSET', record, 'tenant', envelope.tenant, 'bound', '1')
  end
  local calls = type(envelope.webhook) == 'string' and envelope.webhook ~= '' or type(envelope.push) == 'table' and next(envelope.push)
  if calls then redis.call('HSET', record, 'outbox', KEYS[6], 'bound', '1') end
end

-- Restores the record from the letter and its replay data: tenant, limits, receivers, and the number of the next event.
local function revive_from_letter()
  local found = letter ~= '' and redis.call('XRANGE', deadletter, letter, letter) or {}
  if #found == 0 then return false end
  local fields = {}
  for i = 1, #found[1][2], 2 do fields[found[1][2][i]] = found[1][2][i + 1] end
  if fields['run_id'] ~= id then return false end
  agent, message = fields['agent_id'] or '', fields['message_data'] or ''
  redis.call('HSET', record, 'agent', agent, 'message', message, 'thread', fields['thread'] or '', 'submitted_at', now,
    'fence', fields['fence'] or 0)
  if fields['thread'] and fields['thread'] ~= '' then redis.call('HSET', record, 'bound', '1') end
  if ARGV[3] == '1' then redis.call('HSET', record, 'outbox', KEYS[6], 'bound', '1') end
  local kept = redis.call('HGET', letters, letter)
  if kept then
    local pairs_list = cjson.decode(kept)
    for i = 1, #pairs_list, 2 do redis.call('HSET', record, pairs_list[i], pairs_list[i + 1]) end
  else
    read_from_message()
  end
  redis.call('ZADD', index, redis.call('HGET', record, 'submitted_at'), id)
  return true
end

if not status then
  if not revive_from_letter() then return 'missing' end
elseif status ~= 'failed' and status ~= 'timed_out' and status ~= 'cancelled' then
  return status
end
if (agent or '') == '' and ARGV[4] ~= '' then
  agent = ARGV[4]
  redis.call('HSET', record, 'agent', agent)
end
-- A cancelled run's old entry may still be in its lane: the record points to the new entry, so the old one is dropped.
local entry = queue_entry(lane, id, agent, message, stamp_of(now))
redis.call('HSET', record, 'status', 'queued', 'lane', lane, 'entry', entry, 'owner', '')
-- A first claim does not write the attempt, so a 0 would stay in the record of a run that was never claimed.
if redis.call('HEXISTS', record, 'fence') == 1 then redis.call('HSET', record, 'attempt', 0) end -- guard: replay-attempt-of-begun-run
redis.call('HDEL', record, 'cancel', 'error', 'result', 'finished_at', 'dead', 'due_at', 'place')
redis.call('ZREM', ended, id)
append_event(record, 'replayed', '{}')
if letter ~= '' then
  redis.call('XDEL', deadletter, letter)
  redis.call('HDEL', letters, letter)
end
return 'replayed'
