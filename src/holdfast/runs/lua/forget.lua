-- Walk a page of the index, oldest first: forget runs whose record is gone, and name those that are not noted as ended. Looking and
-- forgetting are one call, so that a run submitted again under the same id meanwhile stays listed.
-- KEYS  1 runs (zset), 2 run prefix, 3 ended (zset)
-- ARGV  1 how many to skip, 2 how many to look at, 3 '1' to look only, 4 retention ms
-- returns { looked at, forgotten (or would be), ids of the runs without a time to leave }
-- @include clock
-- @include record
local index, run_prefix, ended = KEYS[1], KEYS[2], KEYS[3]
local skip, count, look_only = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'

-- One that succeeded is noted with others, so that it can't be looked up: it is searched for only if it has stayed much too long.
local latest = now_ms() - tonumber(ARGV[4]) - 86400000
local function is_leaving(status, finished_at)
  return status == 'succeeded' and (tonumber(finished_at or nil) or 0) > latest
end

local ids = redis.call('ZRANGE', index, skip, skip + count - 1)
local forgotten, lasting = 0, {}
for _, id in ipairs(ids) do
  local have = read_fields(run_prefix .. id, 'status', 'finished_at')
  if not have[1] and redis.call('EXISTS', run_prefix .. id) == 0 then
    if not look_only then
      redis.call('ZREM', index, id)
      redis.call('ZREM', ended, id)
    end
    forgotten = forgotten + 1
  elseif not is_leaving(have[1], have[2]) and not redis.call('ZSCORE', ended, id) then
    lasting[#lasting + 1] = id
  end
end
return { #ids, forgotten, lasting }
