-- Walk a page of the index, oldest first: forget runs whose record is gone, and name those whose record has no ttl. Looking and
-- forgetting are one call, so that a run submitted again under the same id meanwhile stays listed.
-- KEYS  1 runs (zset), 2 run prefix
-- ARGV  1 how many to skip, 2 how many to look at, 3 '1' to look only
-- returns { looked at, forgotten (or would be), ids of the runs without a ttl }
local index, run_prefix = KEYS[1], KEYS[2]
local skip, count, look_only = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'

local ids = redis.call('ZRANGE', index, skip, skip + count - 1)
local forgotten, lasting = 0, {}
for _, id in ipairs(ids) do
  local ttl = redis.call('PTTL', run_prefix .. id)
  if ttl == -2 then
    if not look_only then redis.call('ZREM', index, id) end
    forgotten = forgotten + 1
  elseif ttl == -1 then
    lasting[#lasting + 1] = id
  end
end
return { #ids, forgotten, lasting }
