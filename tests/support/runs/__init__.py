"""Queues, workers and runs for tests."""
