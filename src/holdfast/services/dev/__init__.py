"""``holdfast dev``: every process of a system in one command, on the embedded server, with reload."""
