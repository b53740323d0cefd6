-- The tables, set for their load: a row is inserted by its claim, updated once by its answer, deleted by the sweep.

-- Indexes for operators, seen only by a statement that says `attempt >= 1`. That is true of every record, but the
-- planner uses a partial index only where a statement implies its condition. Before, a statement on the way of a
-- request could be planned along one of these, on a table that was small when the plan was made: by route, for
-- instance, which a million records share. Now the primary key is the only index that it can take.
DROP INDEX idemproxy.records_claimed_at, idemproxy.records_scope, idemproxy.records_route, idemproxy.records_open;
CREATE INDEX records_claimed_at ON idemproxy.records (claimed_at) WHERE attempt >= 1;
CREATE INDEX records_scope ON idemproxy.records (scope, claimed_at) WHERE attempt >= 1;
CREATE INDEX records_route ON idemproxy.records (route, claimed_at) WHERE attempt >= 1;
CREATE INDEX records_open ON idemproxy.records (claimed_at) WHERE attempt >= 1 AND state <> 'completed';

ALTER TABLE idemproxy.records SET (
    -- Pages are filled. Room in them would only serve an update that changes no indexed column (HOT), and the answer
    -- changes two: expires_at, which the sweep goes by, and state, by which operators find what is open. Without
    -- those two indexes and with half of each page left free, the database took a few percent less CPU per write, at
    -- most, and the table 17 to 60 % more room. That is not worth losing sight of what is open.
    fillfactor = 100,
    -- Each record leaves two dead rows: its claim, and itself when it is swept. A fiftieth of the table may be dead
    -- before it is vacuumed (a fifth by default), so that their room is used again before the table has to grow.
    autovacuum_vacuum_scale_factor = 0.02,
    -- A small table is vacuumed after a thousand dead rows, not after fifty: it would never rest.
    autovacuum_vacuum_threshold = 1000,
    -- For operators' searches. The statements of a request need no statistics.
    autovacuum_analyze_scale_factor = 0.05,
    -- Giving empty pages at the end back to the file system takes a lock that every write waits for, and tomorrow's
    -- records need the pages again.
    vacuum_truncate = false,
    toast.autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_threshold = 1000,
    toast.vacuum_truncate = false
);

-- An answer's body comes compressed, or cannot be (store/packing.py). Trying again took a seventh to a quarter of the
-- time of storing one that does not fit into its row, and gained nothing. MAIN would keep bodies of 4 to 8 kB in their rows,
-- one to a page.
ALTER TABLE idemproxy.records ALTER COLUMN body SET STORAGE EXTERNAL;

-- Nothing is ever searched by these, and a sample of answers has no business in the planner's statistics, where it
-- would outlive its records.
ALTER TABLE idemproxy.records
    ALTER COLUMN body SET STATISTICS 0,
    ALTER COLUMN headers SET STATISTICS 0,
    ALTER COLUMN token SET STATISTICS 0,
    ALTER COLUMN fingerprint SET STATISTICS 0;

-- Events are inserted and deleted, never updated.
ALTER TABLE idemproxy.events SET (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    vacuum_truncate = false
);
