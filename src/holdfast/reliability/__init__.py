"""Retries, pauses and circuit breakers, without knowledge of what is called."""
