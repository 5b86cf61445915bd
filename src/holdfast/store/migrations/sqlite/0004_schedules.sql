-- Schedules that were made or paused at run time; `space` is the set of Redis keys that they belong to.
-- The higher revision is the newer one. No spec: the code has it. Removed ones stay for a while, so that no old copy returns.
CREATE TABLE holdfast_schedules (
    space TEXT NOT NULL,
    name TEXT NOT NULL,
    revision INTEGER NOT NULL,
    spec BLOB NOT NULL,
    paused TEXT NOT NULL,
    paused_since REAL NOT NULL,
    done INTEGER NOT NULL,
    removed INTEGER NOT NULL,
    changed_at REAL NOT NULL,
    PRIMARY KEY (space, name)
);
CREATE INDEX holdfast_schedules_changed ON holdfast_schedules (space, changed_at, name);
