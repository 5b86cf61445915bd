"""Every lease store behind one interface."""
