"""Retries, pauses and circuit breakers, independent of what is called."""
