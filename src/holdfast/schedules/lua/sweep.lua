-- Check one page of a set and repair what no lease can: the second net, for entries that no script of Holdfast leaves behind.
-- Invalid means that no definition is in Redis; whether this scheduler has an agent of that name does not matter.
-- The position after this page is kept, so that the next sweep of any scheduler goes on there.
-- KEYS  1 waiting (zset), 2 working (zset), 3 leases (zset), 4 definitions (hash), 5 record prefix, 6 position (string with ttl)
-- ARGV  1 waiting | working, or empty: at the kept position, 2 rank to begin at, 3 page size, 4 seconds that an invalid entry may
--       be old, 5 '1' if invalid names that are only digits go at once, 6 ttl of the position in ms
-- returns { members looked at, set of the next page (empty: this was the last one), rank of the next page, then per finding: name,
--         numeric | invalid | overlap | returned | unscored | damaged | unreadable }
-- @include state
local waiting, working, leases, definitions, prefix, position = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local which, from, size = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local threshold, numeric_goes, position_ttl = tonumber(ARGV[4]), ARGV[5] == '1', ARGV[6]

-- A position that was overwritten from outside is none: the sweep begins at the head.
local function kept_position()
  local have = redis.pcall('GET', position)
  local name, rank = string.match(type(have) == 'string' and have or '', '^(%l+) (%d+)$')
  if name == 'working' or name == 'waiting' then return name, tonumber(rank) end
  return 'working', 0
end

local function keep_position(looked_at, gone)
  local name, rank = which, from + looked_at - gone -- guard: sweep-page-position
  if looked_at < size then name, rank = which == 'working' and 'waiting' or '', 0 end
  if name == '' then
    redis.call('DEL', position)
  else
    redis.call('SET', position, name .. ' ' .. rank, 'PX', position_ttl) -- guard: sweep-goes-on
  end
  return name, rank
end

if which == '' then which, from = kept_position() end

local clock = now_us()
local now = clock / 1000000
local set = which == 'working' and working or waiting

local function forget(name)
  redis.call('ZREM', set, name)
  if not redis.call('ZSCORE', leases, name) then redis.call('DEL', prefix .. name, prefix .. name .. '#history') end
end

local function take_from_owner(name)
  local have = read_record(prefix .. name, 'fence', 'ready', 'paused_since', 'cadence', 'replan')
  redis.call('HSET', prefix .. name, 'fence', raise_fence(have[1], clock), 'owner', '')
  return have
end

-- With its definition: else the next reconcile brings it back.
local function discard(name)
  redis.call('ZREM', set, name)
  redis.call('ZREM', leases, name)
  redis.call('HDEL', definitions, name)
  redis.call('DEL', prefix .. name)
  return 'unreadable', true
end

local function look_invalid(name, at)
  if numeric_goes and name:find('^%d+$') then
    forget(name)
    return 'numeric', true
  end
  if at > now - threshold then return nil end
  forget(name)
  return 'invalid', true
end

local function look_working(name, at, defined, lease, other)
  local kind = redis.call('TYPE', prefix .. name).ok
  if kind ~= 'hash' and kind ~= 'none' then
    redis.call('DEL', prefix .. name)
    return 'damaged'
  end
  if other and defined then
    redis.call('ZREM', lease and waiting or working, name)
    if not lease then take_from_owner(name) end
    return 'overlap', not lease
  end
  -- Removed while it ran: its holder, or a reclaim, ends it.
  if lease then return nil end
  if not defined then return look_invalid(name, at) end
  redis.call('ZREM', working, name)
  local have = take_from_owner(name)
  come_back(waiting, prefix .. name, name, have[2] or as_score(now), have[3], have[4], have[5])
  return 'returned', true
end

local function look_waiting(name, at, defined)
  if not defined then return look_invalid(name, at) end
  if at > -math.huge and at < math.huge then return nil end
  redis.call('ZADD', waiting, as_score(now), name)
  return 'unscored'
end

local page = redis.call('ZRANGE', set, from, from + size - 1, 'WITHSCORES')
local names = {}
for i = 1, #page, 2 do names[#names + 1] = page[i] end
if #names == 0 then return { 0, keep_position(0, 0) } end

local held = redis.call('ZMSCORE', leases, unpack(names))
local others = redis.call('ZMSCORE', set == working and waiting or working, unpack(names))
local reply, gone = { #names, '', 0 }, 0
for i, name in ipairs(names) do
  local defined = redis.call('HEXISTS', definitions, name) == 1 -- guard: sweep-defined-in-redis
  local look = is_unreadable(name) and discard or set == working and look_working or look_waiting -- guard: sweep-unreadable-name
  local word, left = look(name, tonumber(page[2 * i]), defined, held[i], others[i])
  if left then gone = gone + 1 end
  if word then
    reply[#reply + 1] = name
    reply[#reply + 1] = word
  end
end
reply[2], reply[3] = keep_position(#names, gone)
return reply
