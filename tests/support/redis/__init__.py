"""Redis and Valkey servers for tests, and a network that fails on demand."""
