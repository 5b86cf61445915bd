"""Schedules: work that is due again and again, found by its score and run under a lease.

::

    what it is     schedule, trigger, declaration (@app.schedule)
    when it is due wallclock (cron and zones), fire_times, cadence (next turn, backoff), overlap (policies)
    how it runs    scheduler (the loop) -> acquisition -> firing (the life of one) -> completion
                   with context (what firings share), submission (to a queue), parallel, zombies, selection,
                   wakeup, clock, breakers
    who changes it definitions, registry, backfill; entries, history, explain read
    upkeep         reconcile, sql_sync, orphans, upkeep, periodic; health and report
    Redis          lua/, replies, redis_errors
"""

from __future__ import annotations

from holdfast.schedules.schedule import Schedule, checked
from holdfast.schedules.trigger import Cron, Every, Once, Trigger

__all__ = ["Cron", "Every", "Once", "Schedule", "Trigger", "checked"]
