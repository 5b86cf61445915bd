-- Let a schedule's next turn run beside the one that goes on: as a schedule of its own, `name#n`, due now.
-- KEYS  1 waiting (zset), 2 definitions (hash), 3 priorities (zset), 4 record prefix, 5 nudge (channel)
-- ARGV  1 owner, 2 name, 3 fence (of the turn that goes on), 4 the next turn (s), 5 most turns at once, that one included,
--       6 and 7 its definition before and after its name, 8 fingerprint of its trigger, 9 timeout ms, 10 priority
-- returns { { keys thrown away }, placed | already (that turn, or a later one, was placed before) | full | paused | stale |
--         unknown (removed meanwhile) }
-- @include state
-- @include turns
local waiting, definitions, priorities, prefix, nudge = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, name, fence, turn, most = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

-- The names are the bound: nothing has to be counted, so no count can go wrong.
local function free_name()
  for n = 1, most - 1 do -- guard: beside-limit
    if redis.call('HEXISTS', definitions, name .. '#' .. n) == 0 then return name .. '#' .. n end
  end
end

local function place()
  -- A turn has no turns of its own.
  if schedule_of(name) or redis.call('HEXISTS', definitions, name) == 0 then return 'unknown' end
  local record = prefix .. name
  local have = read_record(record, 'owner', 'fence', 'beside', 'streak', 'runs', 'paused_since')
  if have[1] ~= owner or have[2] ~= fence then return 'stale' end -- guard: beside-fence
  if have[3] and tonumber(turn) <= (tonumber(have[3]) or 0) then return 'already' end -- guard: beside-once
  if have[6] then return 'paused' end -- guard: beside-paused
  local beside = free_name()
  if not beside then return 'full' end
  local defined = { spec = ARGV[6] .. beside .. ARGV[7], trigger = ARGV[8], timeout = ARGV[9], priority = ARGV[10] }
  place_turn(waiting, definitions, priorities, prefix, beside, defined, have[4])
  redis.call('HSET', record, 'beside', turn, 'names', most, 'runs', string.format('%.0f', (tonumber(have[5]) or 0) + 1))
  redis.call('PUBLISH', nudge, 'placed')
  return 'placed'
end

local word = place()
return { discarded, word }
