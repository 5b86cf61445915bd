-- Where a graph stands: checkpoints of a framework, as it writes them. `run` wrote it and can be taken back.
CREATE TABLE holdfast_checkpoints (
    scope text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    ns text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    parent text NOT NULL,
    run text NOT NULL,
    kind text NOT NULL,
    value bytea NOT NULL,
    metadata_kind text NOT NULL,
    metadata bytea NOT NULL,
    written_at double precision NOT NULL,
    PRIMARY KEY (scope, thread, ns, id)
);

-- What the tasks of a checkpoint have written so far, before the next checkpoint has it.
CREATE TABLE holdfast_checkpoint_writes (
    scope text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    ns text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    idx integer NOT NULL,
    channel text NOT NULL,
    kind text NOT NULL,
    value bytea NOT NULL,
    path text COLLATE "C" NOT NULL,
    run text NOT NULL,
    PRIMARY KEY (scope, thread, ns, id, task, idx)
);
