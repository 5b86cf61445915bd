"""The only door to SQL: steps, state and finished runs, in a SQLite file or in PostgreSQL.

Invariant: every write of a run carries its fence and owner, and is refused in the same transaction if
somebody else has taken the run over since.
"""
