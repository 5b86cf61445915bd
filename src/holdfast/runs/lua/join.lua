-- Create the lanes and their group where they are missing, from the first entry on, and a consumer in each: on Redis 7.0 a read
-- that returns nothing does not create it.
-- KEYS  1-4 lanes (streams)
-- ARGV  1 group, 2 consumer, or '' for none
local group, consumer = ARGV[1], ARGV[2]

for _, lane in ipairs(KEYS) do
  local made = redis.pcall('XGROUP', 'CREATE', lane, group, '0', 'MKSTREAM')
  if made.err and not made.err:find('BUSYGROUP', 1, true) then return made end
  if consumer ~= '' then redis.call('XGROUP', 'CREATECONSUMER', lane, group, consumer) end
end
