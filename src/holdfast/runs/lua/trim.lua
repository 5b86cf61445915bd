-- Trim what is done from a lane: entries older than the retention that every group has acked. The oldest pending entry of any
-- group and whatever some group has not been given yet are the limit: work is never trimmed.
-- KEYS  1 lane (stream)
-- ARGV  1 retention ms, 2 about how many at most, 3 '1' to look only
-- returns how many were trimmed (or would be); 0 = nothing is left to trim
-- @include clock
-- @include group
-- @include ids
local lane = KEYS[1]
local retention, limit, look_only = tonumber(ARGV[1]), ARGV[2], ARGV[3] == '1'

local groups = groups_of(lane)
if #groups == 0 then return 0 end

local limit_id = string.format('%.0f-0', math.max(now_ms() - retention, 0))
local function not_beyond(id)
  if id_before(id, limit_id) then limit_id = id end
end
for _, group in ipairs(groups) do
  not_beyond(id_after(group['last-delivered-id']))
  if group['pending'] > 0 then not_beyond(redis.call('XPENDING', lane, group['name'])[2]) end
end

if look_only then return #redis.call('XRANGE', lane, '-', '(' .. limit_id, 'COUNT', limit) end
-- Whole nodes first, which can be limited; what is left then is less than a node.
local trimmed = redis.call('XTRIM', lane, 'MINID', '~', limit_id, 'LIMIT', limit)
if trimmed == 0 then trimmed = redis.call('XTRIM', lane, 'MINID', '=', limit_id) end
return trimmed
