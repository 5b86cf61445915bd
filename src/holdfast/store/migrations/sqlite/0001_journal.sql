-- Who may write for a run: the highest fence that was seen, and its owner.
CREATE TABLE holdfast_fences (
    run TEXT NOT NULL PRIMARY KEY,
    fence INTEGER NOT NULL,
    owner TEXT NOT NULL,
    used_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX holdfast_fences_used_at ON holdfast_fences (used_at);

-- What a run has done already.
CREATE TABLE holdfast_steps (
    run TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    seconds REAL NOT NULL,
    fence INTEGER NOT NULL,
    written_at REAL NOT NULL,
    PRIMARY KEY (run, name)
);

-- What a thread (or a run without one) remembers. The newest seq of a key wins; no value means deleted.
-- Each run has rows of its own, so that what it wrote can be taken back.
CREATE TABLE holdfast_state (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    run TEXT NOT NULL,
    value BLOB,
    seq INTEGER NOT NULL,
    written_at REAL NOT NULL,
    PRIMARY KEY (scope, key, run)
);
CREATE INDEX holdfast_state_seq ON holdfast_state (scope, seq);
