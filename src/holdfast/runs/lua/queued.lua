-- The entry of a run in its lane: the five fields that every producer may write and every worker reads.
local function stamp_of(now)
  return string.format('%d.%03d', math.floor(now / 1000), now % 1000)
end

local function queue_entry(lane, id, agent, message, stamp)
  return redis.call('XADD', lane, '*', 'message_data', message or '', 'agent_id', agent or '', 'task_id', id, 'timestamp', stamp,
    'correlation_id', id)
end
