"""The script that moves modules rewrites each mention of one, and nothing that only looks like it."""

from __future__ import annotations

import pytest

from tools.move import Mentions

MOVED = Mentions("holdfast.services.desk", "holdfast.runs.pool", package=False)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import holdfast.services.desk\n", "import holdfast.runs.pool\n"),
        ("from holdfast.services.desk import A, B\n", "from holdfast.runs.pool import A, B\n"),
        ('PATH = "holdfast.services.desk:run"\n', 'PATH = "holdfast.runs.pool:run"\n'),
        ("from holdfast.services.desks import A\n", "from holdfast.services.desks import A\n"),
        (
            "from holdfast.services import desk\n\ndesk.run(my.desk.x)\n",
            "from holdfast.runs import pool\n\npool.run(my.desk.x)\n",
        ),
        (
            "from holdfast.services import (\n    api,\n    desk,\n)\n\nx = desk.y\n",
            "from holdfast.runs import pool\nfrom holdfast.services import api\n\nx = pool.y\n",
        ),
        (
            "def f():\n    from holdfast.services import desk as d  # noqa: PLC0415\n\n    d.run()\n",
            "def f():\n    from holdfast.runs import pool as d  # noqa: PLC0415\n\n    d.run()\n",
        ),
    ],
)
def test_imports_and_names_follow(before: str, after: str):
    assert MOVED.rewrite(before, python=True) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("see `services/desk.py`", "see `runs/pool.py`"),
        ("src/holdfast/services/desk.py:12", "src/holdfast/runs/pool.py:12"),
        ("my_services/desk.py", "my_services/desk.py"),
        ("holdfast.services.desk -> redis", "holdfast.runs.pool -> redis"),
    ],
)
def test_paths_in_documents_follow(before: str, after: str):
    assert MOVED.rewrite(before, python=False) == after


def test_a_package_moves_with_all_that_is_in_it():
    package = Mentions("holdfast.cli.demo", "bench.demo", package=True)
    assert package.rewrite("cli/demo/view.py and holdfast.cli.demo.view", python=False) == (
        "bench/demo/view.py and bench.demo.view"
    )
