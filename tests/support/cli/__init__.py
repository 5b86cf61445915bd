"""Commands for tests, in processes of their own."""
