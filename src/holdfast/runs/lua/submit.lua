-- Accept a batch of runs: idempotency key, record, entry (or due time) and first event of a run are written together.
-- KEYS  1-4 lanes (streams), 5 delayed (zset), 6 gate (hash), 7 runs (zset), 8 run prefix, 9 idempotency prefix,
--       10 limits (set), 11 ended (zset), 12 outbox (zset), 13 unarchived (list)
-- ARGV  1 group, 2 deletes ('1' if acked entries are deleted), 3 max depth, 4 idempotency ttl ms, 5 retention ms, 6 control channel,
--       then per run: id, lane number, delay ms, agent, thread, idempotency key or '', message, multitask (enqueue | reject |
--       interrupt | rollback), tenant, concurrency key, '1' if its events are delivered to receivers, its parent run or ''
-- returns, per run: { queued | delayed | exists | full | paused | draining | busy, run id, entry id (paused, draining: the reason;
--          full: how many runs the queue holds; busy: the run that has the thread), status of an existing run }
-- @include clock
-- @include depth
-- @include busy_thread
local delayed, gate, index, run_prefix, idempotency_prefix = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local limits, ended, outbox = KEYS[10], KEYS[11], KEYS[12]
local group, deletes, max_depth, idempotency_ttl = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), ARGV[4]
local retention, channel = tonumber(ARGV[5]), ARGV[6]
local keys = { returned = KEYS[1], delayed = delayed, ended = ended, limits = limits, run_prefix = run_prefix,
  unarchived = KEYS[13] }
local STRIDE = 12

local now = now_ms()
local stamp = stamp_of(now)
local mode = redis.call('HGET', gate, 'mode')
local depth = redis.call('ZCARD', delayed) + redis.call('SCARD', limits:sub(1, -7) .. 'waiters')
for i = 1, 4 do depth = depth + lane_depth(KEYS[i], group, deletes) end

local function existing(id, key)
  if key ~= '' then
    local run = redis.call('GET', idempotency_prefix .. key)
    -- The key of a run that was removed is free again.
    if run and redis.call('EXISTS', run_prefix .. run) == 1 then return run end -- guard: idempotency-key-of-known-run
  end
  if redis.call('EXISTS', run_prefix .. id) == 1 then return id end -- guard: submit-once
  return nil
end

local function accept(at)
  local id, lane, delay = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  local agent, thread, key, message = ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
  local multitask, tenant, concurrency_key, outside = ARGV[at + 7], ARGV[at + 8], ARGV[at + 9], ARGV[at + 10] == '1'
  local run = existing(id, key)
  if run then
    local have = read_fields(run_prefix .. run, 'entry', 'status')
    return { 'exists', run, have[1] or '', have[2] or '' }
  end
  if mode then return { mode, id, redis.call('HGET', gate, 'reason') or '' } end
  if depth >= max_depth then return { 'full', id, string.format('%d', depth) } end -- guard: queue-depth-limit

  local record, word, entry = run_prefix .. id, 'queued', ''
  local threaded = thread ~= ''
  local holder = threaded and multitask == 'reject' and holders_of(limits, thread)[1]
  if holder then return { 'busy', id, holder } end
  if outside then redis.call('HSET', record, 'outbox', outbox) end
  if outside or threaded or tenant ~= '' or concurrency_key ~= '' then redis.call('HSET', record, 'bound', '1') end
  if threaded then redis.call('HSET', record, 'thread', thread) end
  if tenant ~= '' then redis.call('HSET', record, 'tenant', tenant) end
  if concurrency_key ~= '' then redis.call('HSET', record, 'key', concurrency_key) end
  local waits = threaded and delay == 0 and not take_permit(limits, 'thread:' .. thread, 1, record, id, now)
  if delay > 0 then
    word = 'delayed'
    redis.call('ZADD', delayed, now + delay, id)
    redis.call('HSET', record, 'due_at', now + delay)
    if threaded and PREEMPTS[multitask] then redis.call('HSET', record, 'multitask', multitask) end
  elseif not waits then
    entry = queue_entry(lane, id, agent, message, stamp)
  end
  -- The fields that a claim reads come first: a small hash is searched from its start.
  redis.call('HSET', record, 'status', word, 'lane', lane, 'entry', entry, 'submitted_at', now, 'agent', agent, 'message', message)
  if ARGV[at + 11] ~= '' then redis.call('HSET', record, 'parent', ARGV[at + 11]) end
  redis.call('ZADD', index, now, id)
  if key ~= '' then redis.call('SET', idempotency_prefix .. key, id, 'PX', idempotency_ttl) end
  append_event(record, 'submitted', '{}')
  if waits then wait_for_thread(keys, record, id, thread, multitask, retention, channel, now) end
  depth = depth + 1
  return { word, id, entry }
end

local replies = {}
for at = 7, #ARGV, STRIDE do replies[#replies + 1] = accept(at) end
return replies
