-- Who may write for a run: the highest fence that was seen, and its owner.
CREATE TABLE holdfast_fences (
    run text COLLATE "C" NOT NULL PRIMARY KEY,
    fence bigint NOT NULL,
    owner text NOT NULL,
    used_at double precision NOT NULL
);
CREATE INDEX holdfast_fences_used_at ON holdfast_fences (used_at);

-- What a run has done already.
CREATE TABLE holdfast_steps (
    run text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    seconds double precision NOT NULL,
    fence bigint NOT NULL,
    written_at double precision NOT NULL,
    PRIMARY KEY (run, name)
);

-- What a thread (or a run without one) remembers. The newest seq of a key wins; no value means deleted.
-- Each run has rows of its own, so that what it wrote can be taken back.
CREATE SEQUENCE holdfast_state_order;
CREATE TABLE holdfast_state (
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    run text COLLATE "C" NOT NULL,
    value bytea,
    seq bigint NOT NULL,
    written_at double precision NOT NULL,
    PRIMARY KEY (scope, key, run)
);
CREATE INDEX holdfast_state_seq ON holdfast_state (scope, seq);
