-- @include group
-- Returns the unfinished entries of a lane: XLEN if acked entries are deleted, else those that the group has not acked.
-- Redis loses the lag (nil) when the entry delivered last is deleted, as for a retried run: then entries are counted, up to a limit.
local COUNT_MOST = 1000

local function lane_depth(lane, group, deletes)
  if deletes then return redis.call('XLEN', lane) end
  local info = group_of(lane, group)
  if not info then return redis.call('XLEN', lane) end
  local lag = info['lag'] or #redis.call('XRANGE', lane, '(' .. info['last-delivered-id'], '+', 'COUNT', COUNT_MOST)
  return lag + info['pending']
end
