"""One module for each dashboard."""

from pages.hosts import HOSTS
from pages.producers import PRODUCERS
from pages.runs import RUNS
from pages.schedules import SCHEDULES
from pages.services import SERVICES
from pages.workers import WORKERS

DASHBOARDS = (RUNS, WORKERS, SCHEDULES, HOSTS, PRODUCERS, SERVICES)
