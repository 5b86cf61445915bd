"""Measures the run path beside raw redis-py calls: it reports, and decides nothing."""
