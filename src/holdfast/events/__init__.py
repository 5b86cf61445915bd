"""What happened, in order, for whoever listens."""
