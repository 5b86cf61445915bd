"""What the house tells about itself: logs, metrics and traces, each in a module of its own."""
