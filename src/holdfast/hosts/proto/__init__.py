"""The gRPC service of a host; `make proto` generates the code."""
