-- One row: the id of this store, written once when its tables are made, the same for every process that opens it.
CREATE TABLE holdfast_store (
    only_row integer NOT NULL PRIMARY KEY CHECK (only_row = 1),
    id text NOT NULL
);
INSERT INTO holdfast_store (only_row, id) VALUES (1, replace(gen_random_uuid()::text, '-', ''));
