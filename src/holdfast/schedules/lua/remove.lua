-- Remove schedules for good. One that runs keeps its record until its run ends, and is not planned again.
-- KEYS  1 waiting (zset), 2 working (zset), 3 leases (zset), 4 definitions (hash), 5 priorities (zset), 6 record prefix,
--       7 changes (string)
-- ARGV  1 why running ones should stop, or '' to let them end, then per schedule: name, revision of the removal or ''
-- returns { keys thrown away }, then per schedule: removed | unknown | stale (it was defined anew since)
-- @include state
-- @include turns
-- @include changes
local waiting, working, leases, definitions, priorities, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local stop, changes = ARGV[1], KEYS[7]

local function remove(name, revision)
  if outdated(revision, read_record(prefix .. name, 'revision')[1]) then return 'stale' end
  local known = redis.call('HDEL', definitions, name) == 1
  if known and schedule_of(name) then forget_turn(prefix, name) end
  redis.call('ZREM', priorities, name)
  redis.call('ZREM', waiting, name)
  local record = prefix .. name
  local held = redis.call('ZSCORE', leases, name)
  if known and revision ~= '' then redis.call('HSET', record, 'revision', revision) end
  if not held then
    redis.call('ZREM', working, name)
    forget_record(record)
  elseif known and stop ~= '' then
    redis.call('HSET', record, 'cancel', stop)
  end
  return known and 'removed' or 'unknown'
end

-- With a schedule go those of its turns that are schedules of their own; without one its backfill goes on.
local function remove_turns(name, names)
  for n = 1, (tonumber(names) or 1) - 1 do remove(name .. '#' .. n, '') end
  local line, begun = backfill_keys(prefix, name)
  for _, turn in ipairs(call_sound('ZRANGE', begun, 0, -1)) do remove(turn, '') end
  redis.call('DEL', line, begun, prefix .. name .. '#history') -- guard: removed-history
  local of = schedule_of(name)
  if of then let_backfill_on(waiting, definitions, priorities, prefix, of) end
end

local words, changed = { discarded }, false
for i = 2, #ARGV, 2 do
  local names = read_record(prefix .. ARGV[i], 'names')[1]
  words[#words + 1] = remove(ARGV[i], ARGV[i + 1])
  if words[#words] == 'removed' then
    remove_turns(ARGV[i], names)
    changed = true
  end
end
if redis.call('EXISTS', definitions) == 0 then
  redis.call('DEL', changes)
elseif changed then
  note_change(changes)
end
return words
