-- Cancel a run: at once if it waits, by a request to its worker if it runs.
-- KEYS  1 returned lane (stream), 2 delayed (zset), 3 ended (zset), 4 limits (set), 5 run prefix, 6 unarchived (list)
-- ARGV  1 run id, 2 reason, 3 retention ms, 4 control channel
-- returns cancelled | requested | missing | the status it ended with before
-- @include clock
-- @include stopping
local keys = { returned = KEYS[1], delayed = KEYS[2], ended = KEYS[3], limits = KEYS[4], run_prefix = KEYS[5],
  unarchived = KEYS[6] }

return stop_run(keys, ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], now_ms())
