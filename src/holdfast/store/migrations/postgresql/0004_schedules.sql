-- Schedules that were made or paused at run time; `space` is the set of Redis keys that they belong to.
-- The higher revision is the newer one. No spec: the code has it. Removed ones stay for a while, so that no old copy returns.
CREATE TABLE holdfast_schedules (
    space text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    spec bytea NOT NULL,
    paused text NOT NULL,
    paused_since double precision NOT NULL,
    done integer NOT NULL,
    removed integer NOT NULL,
    changed_at double precision NOT NULL,
    PRIMARY KEY (space, name)
);
CREATE INDEX holdfast_schedules_changed ON holdfast_schedules (space, changed_at, name);
