-- Look at a page of the definitions for what has lost its place or its record: registering it again puts that right.
-- KEYS  1 waiting (zset), 2 leases (zset), 3 definitions (hash), 4 record prefix, 5 working (zset)
-- ARGV  1 cursor, 2 page size
-- returns { next cursor ('0' = that was all), definitions looked at, then per missing: name, spec }
-- @include state
local waiting, leases, definitions, prefix, working = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local cursor, size = ARGV[1], ARGV[2]

local page = redis.call('HSCAN', definitions, cursor, 'COUNT', size)
local reply = { page[1], #page[2] / 2 }

local function is_missing(name, waits)
  local have = read_record(prefix .. name, 'trigger', 'paused_since', 'done')
  if not have[1] then return true end
  return not (waits or have[2] or have[3] or redis.call('ZSCORE', leases, name) or redis.call('ZSCORE', working, name))
end

local names = {}
for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end
local turns = #names > 0 and redis.call('ZMSCORE', waiting, unpack(names)) or {}
for i = 1, #page[2], 2 do
  -- What is no name can't be registered again: whoever meets it in a set discards it.
  if not is_unreadable(page[2][i]) and is_missing(page[2][i], turns[(i + 1) / 2]) then -- guard: missing-readable-name
    reply[#reply + 1] = page[2][i]
    reply[#reply + 1] = page[2][i + 1]
  end
end
return reply
