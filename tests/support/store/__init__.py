"""PostgreSQL servers for tests, and what a store notices of their outages."""
