-- Store the answer that an interrupted run waits for, and queue the run.
-- KEYS  1 returned lane (stream), 2 run (hash)
-- ARGV  1 run id, 2 answer (JSON)
-- returns resumed | missing | the status that can't be resumed
-- @include clock
-- @include resuming
local returned, record = KEYS[1], KEYS[2]
local id, answer = ARGV[1], ARGV[2]

local have = redis.call('HMGET', record, 'agent', 'message', 'interrupts', 'status')
if not have[4] then return 'missing' end
if have[4] ~= 'interrupted' then return have[4] end
resume_run(returned, record, id, have, 'resume', answer, ',"value":' .. answer, now_ms())
return 'resumed'
