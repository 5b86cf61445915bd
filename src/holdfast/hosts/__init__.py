"""Way 3: keep an agent alive. Long-lived agents are processes of hosts; a table of leases locates them."""
