"""The only door to Redis: client, keys, scripts, clock, breaker and the embedded server.

Import the module you need; importing the room itself costs nothing.
"""
