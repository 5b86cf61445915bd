"""The HTTP API for tests: one in this process, and a load balancer in front of several."""
