-- @include attempt
-- @include feed
-- @include queued
-- Queues an interrupted run that has its answer, to be served first; its attempts start again from the first.
-- `have` is { agent, message, interrupts } of its record; the answer is stored in the field `<field>:<index>`, and `event_data` is
-- appended to the data of the event.
local function resume_run(returned, record, id, have, field, answer, event_data, now)
  local index = is_count(have[3]) and have[3] or '1'
  local entry = queue_entry(returned, id, have[1], have[2], stamp_of(now))
  -- guard: resume-resets-attempt
  redis.call('HSET', record, field .. ':' .. index, answer, 'status', 'queued', 'lane', returned, 'entry', entry, 'attempt', 0)
  redis.call('HDEL', record, 'interrupt')
  append_event(record, 'resumed', '{"index":' .. index .. event_data .. '}')
end
