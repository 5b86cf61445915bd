"""The only door to the Kubernetes API; `pod` is what the rest of the house sees of it without its client."""
