-- Which run has a thread now, and which had it before: a write of an earlier run that arrives late is refused.
-- Redis gives every attempt of a thread a higher generation than the one before.
CREATE TABLE holdfast_threads (
    scope text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    run text COLLATE "C" NOT NULL,
    earlier_run text COLLATE "C" NOT NULL,
    generation bigint NOT NULL,
    taken_at double precision NOT NULL,
    PRIMARY KEY (scope, queue)
);
CREATE INDEX holdfast_threads_taken_at ON holdfast_threads (taken_at);
