-- Put past turns of a schedule in line, each once: so many at once are schedules of their own, `name@time`, and due now.
-- KEYS  1 waiting (zset), 2 definitions (hash), 3 priorities (zset), 4 record prefix, 5 nudge (channel)
-- ARGV  1 name, 2 most at once, 3 timeout ms, 4 priority, then per turn: its name, its time (s), its definition, fingerprint
-- returns { keys thrown away }, then per turn: placed | already (it is in line, waits, runs, or has run lately) |
--         unknown (there is no such schedule)
-- @include state
-- @include turns
local waiting, definitions, priorities, prefix, nudge = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local of, most, timeout, priority = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local FIRST, STRIDE = 5, 4

local line = backfill_keys(prefix, of)
local known = redis.call('HEXISTS', definitions, of) == 1

local function put_in_line(name, at, spec, trigger)
  if not known then return 'unknown' end
  local placed = redis.call('HEXISTS', definitions, name) == 1 or redis.call('EXISTS', prefix .. name) == 1
  if placed or call_sound('ZCOUNT', line, at, at) > 0 then return 'already' end
  redis.call('ZADD', line, at, table.concat({ name, trigger, timeout, priority, spec }, ' '))
  return 'placed'
end

local words = { discarded }
for i = FIRST, #ARGV, STRIDE do words[#words + 1] = put_in_line(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) end
if known then
  redis.call('HSET', prefix .. of, 'backfill_most', most)
  let_backfill_on(waiting, definitions, priorities, prefix, of)
  redis.call('PUBLISH', nudge, 'backfill')
end
return words
