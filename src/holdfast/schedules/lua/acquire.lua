-- Acquire up to n due schedules: out of `waiting`, into `working` with their deadline, leased, under a higher fence.
-- One script finds and takes them, so no scheduler tries what another already holds, and nothing runs before it is due.
-- Records are named by what is found, so they can't be declared: they share the hash tag through their prefix.
-- KEYS  1 waiting (zset: name -> next run, s), 2 working (zset: name -> deadline, s), 3 leases (zset: name -> expiry, ms),
--       4 definitions (hash: name -> spec), 5 priorities (zset: name -> class), 6 record prefix
-- ARGV  1 owner, 2 ttl ms, 3 how many, 4 seconds that a class of priority is worth, 5 timeout ms of one that has none,
--       6 '' or the time at which the caller looked for the names that follow: only these are taken, in order, as far as
--       they are (still) due
-- returns { now, earliest score after now, or after that look, or '', due and left, dropped (no definition, held, paused or discarded),
--         { names that were discarded: no schedule is called like that }, of the names given those due and left (else as before),
--         then per schedule: name, fence, ready, deadline, streak, runs, spec, cadence or '-' (a turn of its own),
--         the last turn placed beside it or '', how often its holder died since it last ended }
-- @include state
-- @include order
local waiting, working, leases, definitions, priorities, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner, ttl, room, worth = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local default_timeout, named = tonumber(ARGV[5]), ARGV[6] ~= ''
local FIRST_NAME, WINDOW, LOOK_MOST, ROUNDS = 7, 200, 2000, 20

local clock = now_us()
local now = clock / 1000000
local now_score = as_score(now)
local dropped, unreadable = 0, {}
local leaving, deadlines, expiries, taken = {}, {}, {}, {}

-- Patient ones at the head may hide others that go before them: read on, page by page, until the order of enough is certain,
-- since those further back are normal at best; urgent ones are looked up. Those of a class go by their time.
local function whatever_is_due_by_rank()
  local window = math.max(room, WINDOW)
  local candidates, known, of_class = {}, {}, {}
  for from = 0, LOOK_MOST - window, window do -- guard: acquire-past-patient
    local page = page_due(waiting, now_score, from, window)
    add_ranked(page, priorities, worth, window, of_class, candidates)
    if #page < 2 * window then break end
    local reached, sure = tonumber(page[#page]), 0
    for _, candidate in ipairs(candidates) do
      if candidate.rank <= reached then sure = sure + 1 end
    end
    if sure >= room then break end
  end
  for _, candidate in ipairs(candidates) do known[candidate.name] = true end
  add_ranked(urgent_due(waiting, priorities, now, known), priorities, worth, math.huge, {}, candidates)
  return in_order(candidates)
end

local function whatever_is_due()
  if redis.call('EXISTS', priorities) == 1 then return whatever_is_due_by_rank() end
  local page = page_due(waiting, now_score, 0, dropped > 0 and math.max(room, WINDOW) or room)
  local candidates = {}
  for i = 1, #page, 2 do
    candidates[#candidates + 1] = { name = page[i], score = page[i + 1], at = tonumber(page[i + 1]) }
  end
  return candidates
end

-- Asked again here: since the caller looked, another may have taken or even finished them.
local function those_still_due()
  local names, due, candidates = {}, {}, {}
  for i = FIRST_NAME, #ARGV do names[#names + 1] = ARGV[i] end
  if #names == 0 then return candidates end
  for i, score in ipairs(redis.call('ZMSCORE', waiting, unpack(names))) do
    local at = tonumber(score or nil)
    if at and at <= now then due[#due + 1], due[#due + 2] = names[i], score end -- guard: acquire-still-due
  end
  add_ranked(due, priorities, worth, math.huge, {}, candidates)
  return in_order(candidates)
end

local function drop(candidate)
  redis.call('ZREM', waiting, candidate.name)
  dropped = dropped + 1
end

-- Once and for good: what is only dropped comes back from its definition, to be found here again.
local function discard(candidate)
  drop(candidate)
  redis.call('HDEL', definitions, candidate.name)
  redis.call('DEL', prefix .. candidate.name)
  unreadable[#unreadable + 1] = candidate.name
end

local function take(candidate, spec)
  local name, record = candidate.name, prefix .. candidate.name
  local have = read_record(record, 'fence', 'timeout_ms', 'streak', 'runs', 'paused_since', 'cadence', 'cancel', 'beside',
    'reclaimed')
  if have[5] and not have[6] then
    redis.call('HSET', record, 'next', candidate.score)
    return drop(candidate)
  end
  local fence = raise_fence(have[1], clock)
  local ready = candidate.at == -math.huge and now_score or candidate.score
  local deadline = as_score(now + (tonumber(have[2]) or default_timeout) / 1000)
  redis.call('HSET', record, 'fence', fence, 'owner', owner, 'ready', ready, 'acquired_at', now_score)
  if have[7] then redis.call('HDEL', record, 'cancel') end
  leaving[#leaving + 1] = name
  local n = #deadlines
  deadlines[n + 1], deadlines[n + 2] = deadline, name
  expiries[n + 1], expiries[n + 2] = math.floor(clock / 1000) + ttl, name
  n = #taken
  taken[n + 1], taken[n + 2], taken[n + 3], taken[n + 4] = name, fence, ready, deadline
  taken[n + 5], taken[n + 6], taken[n + 7], taken[n + 8] = have[3] or '0', have[4] or '0', spec, have[6] or '-'
  taken[n + 9], taken[n + 10] = have[8] or '', have[9] or '0' -- guard: acquired-beside
end

local function take_first(candidates)
  local names = {}
  local most = dropped > 0 and math.max(room, WINDOW) or room
  for i = 1, math.min(most, #candidates) do names[i] = candidates[i].name end
  if #names == 0 then return end
  local specs = redis.call('HMGET', definitions, unpack(names))
  local held = redis.call('ZMSCORE', leases, unpack(names))
  for i = 1, #names do
    if #leaving >= room then break end
    -- A leased schedule has a holder, though it is in both sets: its holder or a reclaim brings it back.
    if is_unreadable(names[i]) then -- guard: acquire-readable-name
      discard(candidates[i])
    elseif specs[i] and not held[i] then -- guard: acquire-not-held
      take(candidates[i], specs[i])
    else
      drop(candidates[i])
    end
  end
  if #leaving == 0 then return end
  redis.call('ZREM', waiting, unpack(leaving)) -- guard: acquired-leaves-waiting
  redis.call('ZADD', working, unpack(deadlines))
  redis.call('ZADD', leases, unpack(expiries))
  room = room - #leaving
  leaving, deadlines, expiries = {}, {}, {}
end

-- Where something had to be dropped there is room for others: they must not wait behind it.
for _ = 1, ROUNDS do
  local before = dropped
  take_first(named and those_still_due() or whatever_is_due())
  if dropped == before or room <= 0 then break end -- guard: acquire-past-invalid
end

-- What is due and left is not run here, or does not fit: only what is still to come says when to look again. The caller does
-- not know what became due after its look: that counts as still to come, or it would wait for the caller's longest sleep.
local known = named and ARGV[6] or now_score -- guard: acquire-due-since-look
local earliest = redis.call('ZRANGEBYSCORE', waiting, '(' .. known, '+inf', 'WITHSCORES', 'LIMIT', 0, 1) -- guard: acquire-next-turn
local left = redis.call('ZCOUNT', waiting, '-inf', now_score)
local reply = { now_score, earliest[2] or '', left, dropped, unreadable, named and #those_still_due() or left }
for i = 1, #taken do reply[6 + i] = taken[i] end
return reply
