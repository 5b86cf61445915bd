"""The tests: CONTRIBUTING.md says what is where."""
