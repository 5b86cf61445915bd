-- Runs that have ended. `run` is what the journal calls it: its queue and its id.
CREATE TABLE holdfast_archive (
    run text COLLATE "C" NOT NULL PRIMARY KEY,
    id text COLLATE "C" NOT NULL,
    queue text NOT NULL,
    agent text NOT NULL,
    thread_id text NOT NULL,
    tenant text NOT NULL,
    status text NOT NULL,
    attempt bigint NOT NULL,
    fence bigint NOT NULL,
    submitted_at double precision NOT NULL,
    started_at double precision NOT NULL,
    finished_at double precision NOT NULL,
    input bytea NOT NULL,
    result bytea NOT NULL,
    error bytea NOT NULL,
    metadata bytea NOT NULL
);
CREATE INDEX holdfast_archive_id ON holdfast_archive (id);
CREATE INDEX holdfast_archive_finished ON holdfast_archive (finished_at, run);
CREATE INDEX holdfast_archive_status ON holdfast_archive (status, finished_at, run);
CREATE INDEX holdfast_archive_agent ON holdfast_archive (agent, finished_at, run);
CREATE INDEX holdfast_archive_thread ON holdfast_archive (thread_id, finished_at, run) WHERE thread_id <> '';
CREATE INDEX holdfast_archive_tenant ON holdfast_archive (tenant, finished_at, run) WHERE tenant <> '';
