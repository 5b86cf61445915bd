-- Which run has a thread now, and which had it before: a write of an earlier run that arrives late is refused.
-- Redis gives every attempt of a thread a higher generation than the one before.
CREATE TABLE holdfast_threads (
    scope TEXT NOT NULL,
    queue TEXT NOT NULL,
    run TEXT NOT NULL,
    earlier_run TEXT NOT NULL,
    generation INTEGER NOT NULL,
    taken_at REAL NOT NULL,
    PRIMARY KEY (scope, queue)
) WITHOUT ROWID;
CREATE INDEX holdfast_threads_taken_at ON holdfast_threads (taken_at);
