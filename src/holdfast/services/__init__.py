"""One file per process, and the only wiring: settings become objects, rooms meet, signals are handled."""
