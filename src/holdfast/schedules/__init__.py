"""Way 2, do this again and again: schedules that are due, found by their score and held by a lease."""

from __future__ import annotations

from holdfast.schedules.schedule import Schedule, checked
from holdfast.schedules.trigger import Cron, Every, Once, Trigger

__all__ = ["Cron", "Every", "Once", "Schedule", "Trigger", "checked"]
