-- @include group
-- How many entries of a lane are not done: XLEN where acked entries are deleted, else what the group has not acked.
-- Redis loses count (lag is nil) when the entry delivered last is deleted, as a retried run's is: then we count, up to a limit.
local COUNT_MOST = 1000

local function lane_depth(lane, group, deletes)
  if deletes then return redis.call('XLEN', lane) end
  local info = group_of(lane, group)
  if not info then return redis.call('XLEN', lane) end
  local lag = info['lag'] or #redis.call('XRANGE', lane, '(' .. info['last-delivered-id'], '+', 'COUNT', COUNT_MOST)
  return lag + info['pending']
end
