"""Scaling tried out before it is deployed: KEDA, the HPA and the local autoscaler over a simulated queue.

`rules` decides, `engine` is what it decides about; neither looks at a clock, both are told the time.
"""
