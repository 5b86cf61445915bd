"""The HTTP API: one module per noun, over the same queues and feeds that clients and operators use."""
