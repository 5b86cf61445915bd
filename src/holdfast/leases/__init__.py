"""The kernel: hold, renew, stop if lost, settle once under the fence, hand back, reclaim from the dead.

How work is found differs between runs, schedules and hosts; what follows is the same, and written here once.
"""
