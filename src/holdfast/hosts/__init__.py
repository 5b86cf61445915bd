"""Way 3: keep this one alive. Long-lived agents are processes of hosts; a table of leases says where."""
