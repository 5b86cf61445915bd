"""The scaling simulator (``holdfast simulate``): KEDA, HPA and the local autoscaler over a simulated queue.

``rules`` decides how many workers there are, ``engine`` simulates the workers and the queue; neither reads a
clock. The package uses ``holdfast``, and no process of ``holdfast`` imports it: only the command does.
"""
