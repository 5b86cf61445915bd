"""The transport over the HTTP API, for programs that should not, or can't, reach Redis."""
