"""Rules of the house that no linter knows: how large the kernel may become, and a module."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
GENERATED = "_pb2"


def lines(path: Path) -> int:
    """The lines without the markers of guards, which tests add to a module."""
    return sum(not line.lstrip().startswith("# guard: ") for line in path.read_text().splitlines())


def test_the_kernel_stays_under_500_lines():
    """As ARCHITECTURE.md says: whoever wants to trust it can read it in one sitting."""
    kernel = list((SOURCE / "leases").rglob("*.py"))
    assert len(kernel) > 5
    assert sum(map(lines, kernel)) < 500


def test_no_module_has_more_than_400_lines():
    modules = [path for path in SOURCE.rglob("*.py") if GENERATED not in path.name]
    assert len(modules) > 100
    assert [(path.name, lines(path)) for path in modules if lines(path) > 400] == []
