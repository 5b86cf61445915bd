"""What some tests need beside .venv: ``make test`` fetches it before the tests, which use no network and no installer."""
