"""What tests of agents' processes share."""
