-- A lease is held by exactly one owner under exactly one fence: anybody else's write is stale.
local function held(record, owner, fence)
  -- A record that somebody overwrote by another type is nobody's: it must not fail a whole batch.
  local have = redis.pcall('HMGET', record, 'owner', 'fence') -- guard: held-damaged-record
  return not have.err and have[1] == owner and have[2] == fence -- guard: held-owner-and-fence
end
