"""The transport over Redis; what redis-py raises does not leave it."""
