"""Depth of queues and the number of workers they need.

One depth function (`depth`, `policy`) is used by all: KEDA over HTTP and over gRPC, Prometheus, the local
autoscaler and the simulator. If Redis is unavailable the result is an error, never 0.
"""
