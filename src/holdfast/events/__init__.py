"""The events of runs: feeds to follow, and their delivery to receivers."""
