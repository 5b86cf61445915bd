-- Walk a page of the index, oldest first: remove runs without a record, and return those without an expiry. Both are one call, so
-- that a run submitted again under the same id meanwhile stays listed.
-- KEYS  1 runs (zset), 2 run prefix, 3 ended (zset)
-- ARGV  1 how many to skip, 2 how many to read, 3 '1' for a dry run, 4 retention ms
-- returns { runs read, removed (or would be), ids of the runs without an expiry }
-- @include clock
-- @include record
local index, run_prefix, ended = KEYS[1], KEYS[2], KEYS[3]
local skip, count, dry_run = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'

-- A run that succeeded may have its expiry in a note with others, which can't be looked up by id: it is returned only if it is
-- still there long after its retention.
local latest = now_ms() - tonumber(ARGV[4]) - 86400000
local function has_batch_note(status, finished_at)
  return status == 'succeeded' and (tonumber(finished_at or nil) or 0) > latest
end

local ids = redis.call('ZRANGE', index, skip, skip + count - 1)
local forgotten, lasting = 0, {}
for _, id in ipairs(ids) do
  local have = read_fields(run_prefix .. id, 'status', 'finished_at')
  if not have[1] and redis.call('EXISTS', run_prefix .. id) == 0 then
    if not dry_run then
      redis.call('ZREM', index, id)
      redis.call('ZREM', ended, id)
    end
    forgotten = forgotten + 1
  elseif not has_batch_note(have[1], have[2]) and not redis.call('ZSCORE', ended, id) then
    lasting[#lasting + 1] = id
  end
end
return { #ids, forgotten, lasting }
