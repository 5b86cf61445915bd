"""Where events go: each sink writes the request for one event; one poster sends them all."""
