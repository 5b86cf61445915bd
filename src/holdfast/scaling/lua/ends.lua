-- Where the lanes of a queue end now, so that a reader can wait for what comes after.
-- KEYS  1-4 lanes (streams)
-- ARGV  none
-- returns the last id of each lane, '0-0' of one that is not there; nothing if one of them is no stream
local ends = {}
for i = 1, #KEYS do
  local kind = redis.call('TYPE', KEYS[i])['ok']
  if kind == 'none' then
    ends[i] = '0-0'
  elseif kind == 'stream' then
    local info = redis.call('XINFO', 'STREAM', KEYS[i])
    for at = 1, #info, 2 do
      if info[at] == 'last-generated-id' then ends[i] = info[at + 1] end
    end
  else
    return {}
  end
end
return ends
