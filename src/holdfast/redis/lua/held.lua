-- A lease is held by exactly one owner under exactly one fence: anybody else's write is stale.
local function held(record, owner, fence)
  local have = redis.call('HMGET', record, 'owner', 'fence')
  return have[1] == owner and have[2] == fence
end
