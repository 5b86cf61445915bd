"""The order of the tests: with ``--seed`` a random one that the seed repeats, and the long tests always first.

A random order finds tests that need another test to have run before. Modules stay together, so that their servers are
started once. The last test to begin decides when a run ends, so tests with a long timeout are spread over the
pytest processes and begin there first.
"""

from __future__ import annotations

import itertools
import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, metavar="NUMBER", help="run the tests in the random order of this seed"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--seed")
    if seed is not None:
        items[:] = shuffled(items, random.Random(seed))
    default_timeout = float(config.getini("timeout") or 0)
    long = [item for item in items if _timeout(item) > default_timeout]
    long.sort(key=_timeout, reverse=True)
    short = [item for item in items if _timeout(item) <= default_timeout]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = spread(long, short, workers)


def shuffled(items: list[pytest.Item], chance: random.Random) -> list[pytest.Item]:
    """Shuffle the modules, the classes in a module, and the tests in a class."""
    modules = _groups(items, lambda item: item.location[0])
    chance.shuffle(modules)
    ordered = list[pytest.Item]()
    for module in modules:
        classes = _groups(module, lambda item: item.nodeid.rpartition("::")[0])
        chance.shuffle(classes)
        for members in classes:
            chance.shuffle(members)
            ordered += members
    return ordered


def spread(long: list[pytest.Item], short: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Put the long tests in front of the equal parts that pytest-xdist gives to its processes."""
    total = len(long) + len(short)
    sizes = [(total * (worker + 1)) // workers - (total * worker) // workers for worker in range(workers)]
    ordered, rest = list[pytest.Item](), iter(short)
    for worker, size in enumerate(sizes):
        mine = long[worker::workers]
        ordered += [*mine, *itertools.islice(rest, max(0, size - len(mine)))]
    return [*ordered, *rest]


def _groups(items: list[pytest.Item], key) -> list[list[pytest.Item]]:
    groups = dict[str, list[pytest.Item]]()
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _timeout(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker and marker.args else 0.0
