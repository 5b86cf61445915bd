-- @include attempt
-- @include feed
-- @include queued
-- An interrupted run that has its answer is queued, to be served first; its attempts count from the beginning.
-- `have` is { agent, message, interrupts } of its record; `field` says how the answer is written.
local function go_on(returned, record, id, have, field, answer, told, now)
  local index = is_count(have[3]) and have[3] or '1'
  local entry = queue_entry(returned, id, have[1], have[2], stamp_of(now))
  -- guard: resume-resets-attempt
  redis.call('HSET', record, field .. ':' .. index, answer, 'status', 'queued', 'lane', returned, 'entry', entry, 'attempt', 0)
  redis.call('HDEL', record, 'interrupt')
  append_event(record, 'resumed', '{"index":' .. index .. told .. '}')
end
