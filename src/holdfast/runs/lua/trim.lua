-- Trim a lane: remove entries older than the retention that every group has acked. The limit is the oldest entry that is pending in,
-- or not delivered to, any group: unfinished work is never trimmed.
-- KEYS  1 lane (stream)
-- ARGV  1 retention ms, 2 about how many at most, 3 '1' for a dry run
-- returns how many were trimmed (or would be); 0 = nothing is left to trim
-- @include clock
-- @include group
-- @include ids
local lane = KEYS[1]
local retention, limit, dry_run = tonumber(ARGV[1]), ARGV[2], ARGV[3] == '1'

local groups = groups_of(lane)
if #groups == 0 then return 0 end

local limit_id = string.format('%.0f-0', math.max(now_ms() - retention, 0))
local function lower_limit(id)
  if id_before(id, limit_id) then limit_id = id end
end
for _, group in ipairs(groups) do
  lower_limit(id_after(group['last-delivered-id']))
  if group['pending'] > 0 then lower_limit(redis.call('XPENDING', lane, group['name'])[2]) end
end

if dry_run then return #redis.call('XRANGE', lane, '-', '(' .. limit_id, 'COUNT', limit) end
-- First whole nodes, whose number can be limited; after that less than a node is left.
local trimmed = redis.call('XTRIM', lane, 'MINID', '~', limit_id, 'LIMIT', limit)
if trimmed == 0 then trimmed = redis.call('XTRIM', lane, 'MINID', '=', limit_id) end
return trimmed
