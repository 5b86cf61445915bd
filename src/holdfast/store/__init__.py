"""The only package that accesses SQL: steps, state and finished runs, in a SQLite file or in PostgreSQL.

Invariant: every write of a run has its fence and owner, and is refused in the same transaction if another
owner has taken the run over since.
"""
