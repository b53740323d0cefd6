-- Fewer entries in indexes for each write.
--
-- The indexes are built anew, and writes wait for it: about a second for each million records. Until a replica of the
-- version before has been replaced, its sweep and its operators' lists find no index of theirs and may give up after
-- their 1.5 s; its claims and answers are not concerned.

-- An answer makes a new version of its row, with an entry in every index that it belongs to; so did the
-- claim, and those were dead within milliseconds. Now what is open is in one index, and what is completed in the
-- others: a claim makes two entries (this one and the primary key's), where it made six, and an answer makes three.
DROP INDEX idemproxy.records_expires_at, idemproxy.records_claimed_at, idemproxy.records_scope,
           idemproxy.records_route, idemproxy.records_open;
-- For the sweep, and for operators: what is running or unknown, a handful among millions. `attempt >= 1` is true of
-- every record, and said only by statements that are meant to go along this index (migration 0003 tells why).
CREATE INDEX records_open ON idemproxy.records (expires_at) WHERE attempt >= 1 AND state <> 'completed';
-- For the sweep.
CREATE INDEX records_expires_at ON idemproxy.records (expires_at) WHERE state = 'completed';
-- For operators: the list in order of time, along which one caller's and one route's are looked for, too
-- (store/search.py). Indexes for these two took together a sixth of the database's CPU, and as much of the disk.
CREATE INDEX records_claimed_at ON idemproxy.records (claimed_at) WHERE state = 'completed';

-- The events of a key are few: scope and route need not be in their index, and the writer's number tells them apart.
ALTER TABLE idemproxy.events
    DROP CONSTRAINT events_id,
    ADD CONSTRAINT events_id PRIMARY KEY (key, at, id);
-- The same write by the same caller under another key. The fingerprint first: it differs from write to write, so that
-- one comparison finds the place, and it knows the route.
DROP INDEX idemproxy.events_same_write;
CREATE INDEX events_same_write ON idemproxy.events (fingerprint, scope, at) WHERE event = 'first_write';
