"""Tools that check what is deployed."""

from debtools import amtool, promtool  # noqa: F401 - fixtures
