"""The relay delivers the events of runs to sinks: in order per run, at least once. See ``delivery``."""
