-- Most ends are heard by nobody, and telling nobody takes a thirtieth of what a run costs.

-- Returns the records of the runs that somebody listens for; nil if that can't be known, or if more than `most` channels had to be
-- looked at. Only a server that stands alone knows of all who listen: others of its cluster have listeners of their own, and so have
-- its replicas, also those that are cut off now and will go on from the backlog. One that does not say how it stands,
-- or does not let us ask, stands with others.
local ALONE = { 'cluster_enabled:0\r', 'repl_backlog_active:0\r', 'pubsub_patterns:0\r' } -- guard: live-listeners-elsewhere
local function records_heard(most)
  local said = redis.pcall('INFO', 'cluster', 'replication', 'stats')
  if type(said) ~= 'string' then return nil end
  for _, line in ipairs(ALONE) do
    if not said:find(line, 1, true) then return nil end
  end
  if (tonumber(said:match('pubsub_channels:(%d+)')) or most + 1) > most then return nil end
  local channels, heard = redis.pcall('PUBSUB', 'CHANNELS'), {}
  if channels.err then return nil end
  for _, channel in ipairs(channels) do heard[channel:sub(1, -6)] = true end -- without `:live`
  return heard
end
