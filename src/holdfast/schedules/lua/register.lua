-- Write definitions. A schedule that is known keeps its turn and its state unless what its turns follow from has changed.
-- KEYS  1 waiting (zset), 2 working (zset), 3 leases (zset), 4 definitions (hash), 5 priorities (zset), 6 record prefix,
--       7 nudge (channel), 8 changes (string)
-- ARGV  per schedule: name, spec, fingerprint of its trigger, timeout ms, priority, its first turn (s; '' = it has none),
--       its revision ('' = the code's, which has none), and if it is new: since when it is paused ('' = it is not), why
-- returns, per schedule: created | updated | restored (it was in no set) | unchanged | stale (a newer one is there)
-- @include state
-- @include changes
local waiting, working, leases, definitions = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local priorities, prefix, nudge, changes = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local STRIDE, NORMAL = 9, '5'

-- Changed while it runs: the end of this run does not plan the next by what was; nor does the end of a manual run.
local function move(record, name, first, have, busy, waits)
  if have[4] then redis.call('HDEL', record, 'done') end
  if busy then -- guard: register-busy
    redis.call('HSET', record, have[3] and 'cadence' or 'replan', first) -- guard: register-busy-new-turn
  elseif waits and have[3] then
    redis.call('HSET', record, 'cadence', first)
  else
    land(waiting, record, name, first, have[2])
  end
end

local function begin(record, busy, since, why)
  -- Still running from an earlier life: owner and fence stay, so that its end is heard.
  if not busy then redis.call('DEL', record) end
  redis.call('HDEL', record, 'streak', 'runs', 'paused', 'paused_since', 'next', 'done', 'buffered')
  if since ~= '' then redis.call('HSET', record, 'paused', why, 'paused_since', since) end -- guard: register-with-pause
end

local function register(at)
  local name, spec, trigger, timeout, priority, first =
    ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  local revision, since, why = ARGV[at + 6], ARGV[at + 7], ARGV[at + 8]
  local record = prefix .. name
  local old = redis.call('HGET', definitions, name)
  local waits = redis.call('ZSCORE', waiting, name)
  local busy = redis.call('ZSCORE', leases, name) or redis.call('ZSCORE', working, name)
  local have = read_record(record, 'trigger', 'paused_since', 'cadence', 'done', 'revision', 'owner', 'fence')
  -- guard: register-newer-revision
  if outdated(revision, have[5]) or (old and old ~= spec and revision ~= '' and revision == have[5]) then return 'stale' end
  if revision ~= '' then revise(record, revision, have[5]) end
  if not old then have = { nil, since ~= '' and since or nil } end
  local placed = waits or busy or have[2] or have[4]
  if old == spec and have[1] and placed then return 'unchanged' end

  if not old then
    begin(record, busy, since, why)
    if revision ~= '' then redis.call('HSET', record, 'revision', revision) end
  end
  redis.call('HSET', definitions, name, spec)
  redis.call('HSET', record, 'trigger', trigger, 'timeout_ms', timeout)
  if priority ~= NORMAL then
    redis.call('ZADD', priorities, priority, name)
  elseif old then
    redis.call('ZREM', priorities, name)
  end
  -- Somebody took it out of every set: if it ran, its holder has lost it.
  if old and not placed and have[6] and have[6] ~= '' then
    redis.call('HSET', record, 'fence', raise_fence(have[7], now_us()), 'owner', '') -- guard: restored-has-no-owner
  end
  if not old or (have[1] and have[1] ~= trigger) then -- guard: register-keeps-turn
    move(record, name, first, have, busy, waits)
  elseif not placed then
    land(waiting, record, name, first)
  end
  return not old and 'created' or old ~= spec and 'updated' or 'restored'
end

local words, changed = {}, false
for at = 1, #ARGV, STRIDE do
  local word = register(at)
  changed = changed or (word ~= 'unchanged' and word ~= 'stale')
  words[#words + 1] = word
end
if changed then
  note_change(changes) -- guard: register-notes-change
  redis.call('PUBLISH', nudge, 'registered')
end
return words
