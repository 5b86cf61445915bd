-- Take runs off the list of those that wait for the archive: only if they are still its first, for somebody else may have filed them.
-- KEYS  1 unarchived (list)
-- ARGV  its elements, as they were read
-- returns how many were taken off
local unarchived, n = KEYS[1], #ARGV

local same = redis.call('LINDEX', unarchived, 0) == ARGV[1] and redis.call('LINDEX', unarchived, n - 1) == ARGV[n]
if not same then return 0 end -- guard: archive-list-unchanged
redis.call('LTRIM', unarchived, n, -1)
return n
