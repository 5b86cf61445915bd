-- Most ends have no follower, and publishing to nobody takes a thirtieth of what a run costs.

-- Returns the records of the runs that are followed live; nil if that can't be known, or if more than `most` channels had to be
-- looked at. Only a server without a cluster and replicas knows of all subscribers: other servers have subscribers of their own,
-- also replicas that are cut off now and will go on from the backlog. A server that refuses INFO is taken for one of several.
local ALONE = { 'cluster_enabled:0\r', 'repl_backlog_active:0\r', 'pubsub_patterns:0\r' } -- guard: live-listeners-elsewhere
local function followed_records(most)
  local info = redis.pcall('INFO', 'cluster', 'replication', 'stats')
  if type(info) ~= 'string' then return nil end
  for _, line in ipairs(ALONE) do
    if not info:find(line, 1, true) then return nil end
  end
  if (tonumber(info:match('pubsub_channels:(%d+)')) or most + 1) > most then return nil end
  local channels, followed = redis.pcall('PUBSUB', 'CHANNELS'), {}
  if channels.err then return nil end
  for _, channel in ipairs(channels) do followed[channel:sub(1, -6)] = true end -- without `:live`
  return followed
end
