"""What KEDA asks an external scaler; `make proto` generates the code."""
