-- A lease is held by exactly one owner under exactly one fence: every other write is stale.
local function held(record, owner, fence)
  -- A record that was overwritten with another type is not held: it must not fail a whole batch.
  local have = redis.pcall('HMGET', record, 'owner', 'fence') -- guard: held-damaged-record
  return not have.err and have[1] == owner and have[2] == fence -- guard: held-owner-and-fence
end
