-- The consumer groups of a stream as Redis reports them, as tables; none without a stream.
local function named(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

local function groups_of(lane)
  local groups = {}
  if redis.call('EXISTS', lane) == 0 then return groups end
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', lane)) do groups[#groups + 1] = named(info) end
  return groups
end

local function group_of(lane, group)
  for _, info in ipairs(groups_of(lane)) do
    if info['name'] == group then return info end
  end
  return nil
end
