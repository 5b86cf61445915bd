"""How much work there is, and how many should do it.

One depth function (`depth`, `policy`) answers everybody: KEDA over HTTP and over gRPC, Prometheus, the local
autoscaler and the simulator. If Redis can't be asked there is no answer: never 0.
"""
