-- Remove archived runs from the list of unarchived ones, if they are still its first: another process may have removed them.
-- KEYS  1 unarchived (list)
-- ARGV  its elements, as they were read
-- returns how many were removed
local unarchived, n = KEYS[1], #ARGV

local same = redis.call('LINDEX', unarchived, 0) == ARGV[1] and redis.call('LINDEX', unarchived, n - 1) == ARGV[n]
if not same then return 0 end -- guard: archive-list-unchanged
redis.call('LTRIM', unarchived, n, -1)
return n
