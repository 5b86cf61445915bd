"""Interfaces that other systems prescribe by name, as thin layers over ``hosts`` and ``processes``.

Holdfast itself uses none of them: new code takes an :class:`~holdfast.hosts.engine.HostEngine` or the client.
"""
