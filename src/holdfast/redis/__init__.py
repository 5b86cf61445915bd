"""The only package that accesses Redis: client, keys, scripts, clock, breaker and the embedded server.

Import the module you need; the package itself imports nothing.
"""
