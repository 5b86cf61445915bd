"""Hosts for tests, and the agents that run on them."""
