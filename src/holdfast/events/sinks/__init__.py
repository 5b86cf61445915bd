"""The sinks of events: each sink writes the request for an event; one poster sends all requests."""
