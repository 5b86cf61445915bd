"""Relays for tests, and a receiver of the events that they send."""
