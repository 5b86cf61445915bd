"""Leases: hold, renew, stop if lost, settle once under the fence, hand back, reclaim from dead owners.

Runs, schedules and hosts find their work in different ways, and share this implementation of leases.
"""
