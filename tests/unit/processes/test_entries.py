from __future__ import annotations

from collections import OrderedDict

import pytest

from holdfast.errors import AppError, NotAllowed
from holdfast.processes.entries import allowed_class, entry_path, load_entry


@pytest.mark.parametrize("path", ["collections.OrderedDict", "collections:OrderedDict"])
@pytest.mark.parametrize("prefix", ["collections", "collections.OrderedDict"])
def test_a_class_under_a_prefix_is_loaded(path: str, prefix: str):
    assert allowed_class(path, ["json", prefix]) is OrderedDict


@pytest.mark.parametrize(
    ("path", "prefixes"),
    [
        ("collections.OrderedDict", []),
        ("collections.OrderedDict", ["collection"]),
        ("collections.OrderedDict", ["collections.abc"]),
        ("collections.OrderedDict", [""]),
        ("subprocess.Popen", ["collections"]),
        ("collections/../subprocess.Popen", ["collections"]),
        ("collections..OrderedDict", ["collections"]),
        ("", ["collections"]),
    ],
)
def test_a_class_outside_of_the_prefixes_is_not_even_imported(path: str, prefixes: list[str]):
    with pytest.raises(NotAllowed):
        allowed_class(path, prefixes)


@pytest.mark.parametrize(
    "path", ["collections.namedtuple", "collections.Nothing", "collections.nowhere.Class", "collections"]
)
def test_what_is_no_class_is_an_error_of_the_app(path: str):
    with pytest.raises(AppError):
        allowed_class(path, ["collections"])


def test_an_entry_that_is_nearly_right_is_suggested():
    with pytest.raises(NotAllowed, match=r"it has: resident, rustic\); did you mean 'rustic'"):
        entry_path("rustik", {"resident": "a:b", "rustic": "c:d"})


@pytest.mark.parametrize("path", ["nowhere:run", "json:nothing", "json:__name__", "json", ":run"])
def test_an_entry_that_can_not_be_loaded_says_so(path: str):
    with pytest.raises(AppError, match=path):
        load_entry(path)
