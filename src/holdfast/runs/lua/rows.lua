-- Read the fields of runs for a list, without their messages and results, which may be large.
-- KEYS  1 run prefix
-- ARGV  run ids
-- returns, per run: the fields in the order of partition.py; false values without a record, nothing if its key has another type
-- @include record
local run_prefix = KEYS[1]

local rows = {}
for i = 1, #ARGV do
  -- guard: rows-damaged-record
  rows[i] = read_fields(run_prefix .. ARGV[i], 'status', 'agent', 'thread', 'lane', 'entry', 'attempt', 'fence', 'owner',
    'submitted_at', 'started_at', 'finished_at', 'due_at', 'cancel', 'error', 'tenant', 'parked', 'parent')
end
return rows
