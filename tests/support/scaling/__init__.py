"""Scalers for tests, and worker processes that are scaled."""
