"""Schedulers for tests, and what tests ask of ``/schedules``."""
