-- Read the last id of each lane of a queue, so that a reader can wait for later entries.
-- KEYS  1-4 lanes (streams)
-- ARGV  none
-- returns the last id of each lane, '0-0' for a missing one; nothing if one of them is not a stream
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
