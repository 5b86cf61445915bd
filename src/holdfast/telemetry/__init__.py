"""Telemetry of all processes: logs, metrics and traces."""
