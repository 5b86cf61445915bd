-- Accept a batch of runs: idempotency, run record, stream entry (or due time) and first event, each all or nothing.
-- KEYS  1-4 lanes (streams), 5 delayed (zset), 6 gate (hash), 7 runs (zset), 8 run prefix, 9 idempotency prefix
-- ARGV  1 group, 2 deletes ('1' if acked entries are deleted), 3 max depth, 4 idempotency ttl ms,
--       then per run: id, lane number, delay ms, agent, thread, idempotency key or '', message
-- returns, per run: { queued | delayed | exists | full | paused | draining, run id, entry id, status of one that exists }
-- @include clock
-- @include feed
-- @include depth
-- @include queued
local delayed, gate, index, run_prefix, idempotency_prefix = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local group, deletes, max_depth, idempotency_ttl = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), ARGV[4]
local STRIDE = 7

local now = now_ms()
local stamp = stamp_of(now)
local mode = redis.call('HGET', gate, 'mode')
local depth = redis.call('ZCARD', delayed)
for i = 1, 4 do depth = depth + lane_depth(KEYS[i], group, deletes) end

local function known(id, key)
  if key ~= '' then
    local run = redis.call('GET', idempotency_prefix .. key)
    if run then return run end
  end
  if redis.call('EXISTS', run_prefix .. id) == 1 then return id end
  return nil
end

local function accept(at)
  local id, lane, delay = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  local agent, thread, key, message = ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
  local run = known(id, key)
  if run then
    local have = redis.call('HMGET', run_prefix .. run, 'entry', 'status')
    return { 'exists', run, have[1] or '', have[2] or '' }
  end
  if mode then return { mode, id, '' } end
  if depth >= max_depth then return { 'full', id, '' } end

  local record, word, entry = run_prefix .. id, 'queued', ''
  if delay > 0 then
    word = 'delayed'
    redis.call('ZADD', delayed, now + delay, id)
    redis.call('HSET', record, 'status', word, 'agent', agent, 'thread', thread, 'lane', lane, 'entry', '',
      'submitted_at', now, 'due_at', now + delay, 'message', message)
  else
    entry = queue_entry(lane, id, agent, message, stamp)
    redis.call('HSET', record, 'status', word, 'agent', agent, 'thread', thread, 'lane', lane, 'entry', entry,
      'submitted_at', now, 'message', message)
  end
  redis.call('ZADD', index, now, id)
  if key ~= '' then redis.call('SET', idempotency_prefix .. key, id, 'PX', idempotency_ttl) end
  append_event(record, 'submitted', '{}')
  depth = depth + 1
  return { word, id, entry }
end

local answers = {}
for at = 5, #ARGV, STRIDE do answers[#answers + 1] = accept(at) end
return answers
