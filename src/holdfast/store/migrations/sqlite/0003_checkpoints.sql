-- Where a graph stands: checkpoints of a framework, as it writes them. `run` wrote it and can be taken back.
CREATE TABLE holdfast_checkpoints (
    scope TEXT NOT NULL,
    thread TEXT NOT NULL,
    ns TEXT NOT NULL,
    id TEXT NOT NULL,
    parent TEXT NOT NULL,
    run TEXT NOT NULL,
    kind TEXT NOT NULL,
    value BLOB NOT NULL,
    metadata_kind TEXT NOT NULL,
    metadata BLOB NOT NULL,
    written_at REAL NOT NULL,
    PRIMARY KEY (scope, thread, ns, id)
);

-- What the tasks of a checkpoint have written so far, before the next checkpoint has it.
CREATE TABLE holdfast_checkpoint_writes (
    scope TEXT NOT NULL,
    thread TEXT NOT NULL,
    ns TEXT NOT NULL,
    id TEXT NOT NULL,
    task TEXT NOT NULL,
    idx INTEGER NOT NULL,
    channel TEXT NOT NULL,
    kind TEXT NOT NULL,
    value BLOB NOT NULL,
    path TEXT NOT NULL,
    run TEXT NOT NULL,
    PRIMARY KEY (scope, thread, ns, id, task, idx)
);
