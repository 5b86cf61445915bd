-- Give runs back that did not end, each only under the fence it ran under: a shutdown, or no room to start one.
-- KEYS  1 waiting (zset), 2 working (zset), 3 leases (zset), 4 definitions (hash), 5 record prefix, 6 nudge (channel)
-- ARGV  1 owner, 2 turns that a history keeps, then per run: name, fence, seconds from now or '' (at its original turn), this turn
--       for the history (JSON) or '' (it had not begun)
-- returns { keys thrown away }, then per run: returned | already (ended or given back before) | stale (changes nothing) | removed
-- @include state
-- @include turns
-- @include history
local waiting, working, leases, definitions, prefix, nudge = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner, kept = ARGV[1], tonumber(ARGV[2])
local FIRST, STRIDE = 3, 4

local now = now_us() / 1000000

local function note_history(of, fence, turn)
  if turn == '' or redis.call('HEXISTS', definitions, of) == 0 then return end
  add_to_history(prefix, of, kept, ended_turn(as_score(now), cjson.encode(owner), fence, turn))
end

local function give_back(name, fence, delay, turn)
  local record = prefix .. name
  local have = read_record(record, 'owner', 'fence', 'ready', 'paused_since', 'cadence', 'replan')
  local word = refusal(have[1], have[2], owner, fence, definitions, name)
  if word then return word end -- guard: give-back-fence
  redis.call('ZREM', working, name)
  redis.call('ZREM', leases, name)
  if redis.call('HEXISTS', definitions, name) == 0 then
    forget_record(record)
    return 'removed'
  end
  redis.call('HSET', record, 'owner', '')
  note_history(schedule_of(name) or name, fence, turn)
  local at = delay == '' and have[3] or as_score(now + (tonumber(delay) or 0))
  come_back(waiting, record, name, at, have[4], have[5], have[6])
  return 'returned'
end

local words = { discarded }
for at = FIRST, #ARGV, STRIDE do
  words[#words + 1] = give_back(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
end
redis.call('PUBLISH', nudge, 'returned')
return words
