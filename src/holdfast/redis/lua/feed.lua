-- The feed: what happened to a run, in order. Every script that changes a run appends here, in the same call.
local function append_event(record, kind, data)
  return redis.call('XADD', record .. ':events', '*', 'type', kind, 'data', data)
end
