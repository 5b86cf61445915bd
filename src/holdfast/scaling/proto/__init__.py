"""The protocol of KEDA's external scalers; `make proto` generates the code."""
