-- Definitions and pauses have revisions, at least the clock (us): the higher one is the newer one.
-- Needs `state`.

-- Whether what was decided under a revision ('' = just now) comes too late: the schedule has a newer one.
local function outdated(revision, stored)
  return revision ~= '' and stored and (tonumber(stored) or 0) > (tonumber(revision) or 0) -- guard: older-revision
end

local function revise(record, revision, stored)
  if revision == '' then revision = raise_fence(stored, now_us()) end
  if revision ~= stored then redis.call('HSET', record, 'revision', revision) end
end

-- Whoever compared before compares again. `era-count`: Redis that was emptied begins another era.
local function note_change(key)
  local era, count = string.match(redis.call('GET', key) or '', '^(%d+)-(%d+)$')
  -- guard: emptied-redis-era
  redis.call('SET', key, (era or string.format('%.0f', now_us())) .. '-' .. string.format('%.0f', (tonumber(count) or 0) + 1))
end
