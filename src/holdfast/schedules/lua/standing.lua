-- Tell what to remember, to know later whether a definition or a pause has changed or was lost.
-- KEYS  1 changes (string), 2 definitions (hash), 3 record prefix
-- returns { the mark of the last change or '', definitions that are no turns, { keys thrown away } }
-- @include state
-- @include turns
local changes, definitions, prefix = KEYS[1], KEYS[2], KEYS[3]

-- Turns come and go by themselves: no definition is lost with them.
local turns = call_sound('SCARD', prefix .. '#turns')
return { redis.call('GET', changes) or '', redis.call('HLEN', definitions) - turns, discarded } -- guard: count-without-turns
