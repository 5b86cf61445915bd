"""gRPC servers: what those of hosts and of the scaler have in common."""
