"""How a client reaches the system: over Redis, or over the HTTP API."""
