-- Most runs have no follower at their end, and an event published without a subscriber takes a thirtieth of the cost of a run.

-- Returns the records of the runs with subscribers; nil if the server can't list all subscribers (in a cluster, with replicas or
-- pattern subscriptions, or if it refuses INFO), or if it has more than `most` channels. A replica that is disconnected now counts
-- too, as it will continue from the backlog.
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
