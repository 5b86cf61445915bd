-- Delete a dead letter; the record of its run, if it still exists, keeps its status.
-- KEYS  1 dead letters (stream), 2 run (hash), 3 letters (hash)
-- ARGV  1 dead letter id
-- returns dropped | missing
local deadletter, record, letters = KEYS[1], KEYS[2], KEYS[3]
local letter = ARGV[1]

redis.call('HDEL', letters, letter)
if redis.call('XDEL', deadletter, letter) == 0 then return 'missing' end
if redis.call('HGET', record, 'dead') == letter then redis.call('HDEL', record, 'dead') end
return 'dropped'
