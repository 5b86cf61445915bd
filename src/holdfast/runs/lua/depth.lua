-- How many entries of a lane are not done: XLEN where acked entries are deleted, else what the group has not acked.
-- Redis loses count (lag is nil) when the entry delivered last is deleted, as a retried run's is: then we count, up to a limit.
local COUNT_MOST = 1000

local function lane_depth(lane, group, deletes)
  if deletes then return redis.call('XLEN', lane) end
  if redis.call('EXISTS', lane) == 0 then return 0 end
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', lane)) do
    local fields = {}
    for i = 1, #info, 2 do fields[info[i]] = info[i + 1] end
    if fields['name'] == group then
      local lag = fields['lag'] or #redis.call('XRANGE', lane, '(' .. fields['last-delivered-id'], '+', 'COUNT', COUNT_MOST)
      return lag + fields['pending']
    end
  end
  return redis.call('XLEN', lane)
end
