"""Way 1, runs: do this once, now. A run is found by a stream read, claimed under a fence and settled once."""
