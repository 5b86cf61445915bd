"""Tools that check what is deployed."""

from tests.support.deploy.debian_tools import amtool, promtool  # noqa: F401 - fixtures
