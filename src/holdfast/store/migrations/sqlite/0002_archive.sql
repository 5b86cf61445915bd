-- Runs that have ended. `run` is what the journal calls it: its queue and its id.
CREATE TABLE holdfast_archive (
    run TEXT NOT NULL PRIMARY KEY,
    id TEXT NOT NULL,
    queue TEXT NOT NULL,
    agent TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    status TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    submitted_at REAL NOT NULL,
    started_at REAL NOT NULL,
    finished_at REAL NOT NULL,
    input BLOB NOT NULL,
    result BLOB NOT NULL,
    error BLOB NOT NULL,
    metadata BLOB NOT NULL
);
CREATE INDEX holdfast_archive_id ON holdfast_archive (id);
CREATE INDEX holdfast_archive_finished ON holdfast_archive (finished_at, run);
CREATE INDEX holdfast_archive_status ON holdfast_archive (status, finished_at, run);
CREATE INDEX holdfast_archive_agent ON holdfast_archive (agent, finished_at, run);
CREATE INDEX holdfast_archive_thread ON holdfast_archive (thread_id, finished_at, run) WHERE thread_id <> '';
CREATE INDEX holdfast_archive_tenant ON holdfast_archive (tenant, finished_at, run) WHERE tenant <> '';
