"""One file per process, and the only wiring: builds the objects from the settings, handles signals."""
