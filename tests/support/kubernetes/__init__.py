"""A Kubernetes API for tests."""
