"""What a host can be asked for over gRPC; `make proto` generates the code."""
