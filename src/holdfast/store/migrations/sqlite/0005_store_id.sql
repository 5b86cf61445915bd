-- One row: the id of this store, written once when its file is made, the same for every process that opens it.
CREATE TABLE holdfast_store (
    only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    id TEXT NOT NULL
);
INSERT INTO holdfast_store (only_row, id) VALUES (1, lower(hex(randomblob(16))));
