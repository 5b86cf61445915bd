-- Walk a page of the index, oldest first: forget runs whose record is gone, and name those that are not noted as ended. Looking and
-- forgetting are one call, so that a run submitted again under the same id meanwhile stays listed.
-- KEYS  1 runs (zset), 2 run prefix, 3 ended (zset)
-- ARGV  1 how many to skip, 2 how many to look at, 3 '1' to look only
-- returns { looked at, forgotten (or would be), ids of the runs without a time to leave }
local index, run_prefix, ended = KEYS[1], KEYS[2], KEYS[3]
local skip, count, look_only = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'

local ids = redis.call('ZRANGE', index, skip, skip + count - 1)
local forgotten, lasting = 0, {}
for _, id in ipairs(ids) do
  if redis.call('EXISTS', run_prefix .. id) == 0 then
    if not look_only then
      redis.call('ZREM', index, id)
      redis.call('ZREM', ended, id)
    end
    forgotten = forgotten + 1
  elseif not redis.call('ZSCORE', ended, id) then
    lasting[#lasting + 1] = id
  end
end
return { #ids, forgotten, lasting }
