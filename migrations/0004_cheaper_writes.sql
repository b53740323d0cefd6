-- The same rules and searches for less of the database's CPU per write.
--
-- The table and its indexes are built anew, and writes wait for it: about two seconds for each million records. Until a
-- replica of the version before has been replaced, its sweep and its operators' lists find no index of theirs and may
-- give up after their 1.5 s; its claims and answers are not concerned.

-- An answer makes a new version of its row, with an entry in every index that it belongs to; so did the
-- claim, and those were dead within milliseconds. Now what is open is in one index, and what is completed in the
-- others: a claim makes two entries (this one and the primary key's), where it made six, and an answer makes three.
DROP INDEX idemproxy.records_expires_at, idemproxy.records_claimed_at, idemproxy.records_scope,
           idemproxy.records_route, idemproxy.records_open;

-- What must be true of a single column is a rule of its type. Postgres keeps the rules of types in each session's memory,
-- ready to run; a table's CHECKs it reads anew, from their text in the catalogue, for every INSERT and every UPDATE of every
-- statement: that was a third of all it did for a batch of eight claims and eight answers, and is a seventh now.
-- A length inside the expression (`{1,255}`) is a state machine of 255 steps, built for each row: of a key with 36
-- characters it took 25 µs, twice per write. These two take less than one.
CREATE DOMAIN idemproxy.key AS text COLLATE "C"
    CONSTRAINT key_printable CHECK (octet_length(VALUE) BETWEEN 1 AND 255 AND VALUE !~ '[^ -~]');
CREATE DOMAIN idemproxy.route AS text COLLATE "C"
    CONSTRAINT route_length CHECK (length(VALUE) BETWEEN 1 AND 512);
CREATE DOMAIN idemproxy.scope AS bytea
    CONSTRAINT scope_length CHECK (octet_length(VALUE) = 32);
-- A version byte and a SHA-256.
CREATE DOMAIN idemproxy.fingerprint AS bytea
    CONSTRAINT fingerprint_length CHECK (octet_length(VALUE) = 33);
CREATE DOMAIN idemproxy.token AS bytea
    CONSTRAINT token_length CHECK (octet_length(VALUE) = 16);
CREATE DOMAIN idemproxy.attempt AS integer
    CONSTRAINT attempt_counts_from_one CHECK (VALUE >= 1);
CREATE DOMAIN idemproxy.state AS text COLLATE "C"
    CONSTRAINT state_is_known CHECK (VALUE IN ('claimed', 'completed', 'unknown'));
CREATE DOMAIN idemproxy.final_status AS smallint
    CONSTRAINT status_is_final CHECK (VALUE BETWEEN 200 AND 599);

ALTER TABLE idemproxy.records
    DROP CONSTRAINT records_key_printable,
    DROP CONSTRAINT records_scope_hash,
    DROP CONSTRAINT records_route_length,
    DROP CONSTRAINT records_fingerprint_length,
    DROP CONSTRAINT records_token_length,
    DROP CONSTRAINT records_attempt_counts_from_one,
    DROP CONSTRAINT records_state,
    DROP CONSTRAINT records_claim_outlives_lease,
    DROP CONSTRAINT records_settled_has_time,
    DROP CONSTRAINT records_completed_has_status,
    DROP CONSTRAINT records_status_is_final,
    DROP CONSTRAINT records_body_belongs_to_answer,
    ALTER COLUMN key TYPE idemproxy.key,
    ALTER COLUMN scope TYPE idemproxy.scope,
    ALTER COLUMN route TYPE idemproxy.route,
    ALTER COLUMN fingerprint TYPE idemproxy.fingerprint,
    ALTER COLUMN token TYPE idemproxy.token,
    ALTER COLUMN attempt TYPE idemproxy.attempt,
    ALTER COLUMN state TYPE idemproxy.state,
    ALTER COLUMN status TYPE idemproxy.final_status,
    -- A live claim can never be expired: this is why the sweep needs to look at nothing but expires_at. Only what is
    -- settled has a time of it, and only a completed record has a status.
    ADD CONSTRAINT records_state CHECK (
        CASE WHEN settled_at IS NULL THEN state = 'claimed' AND status IS NULL AND lease_until < expires_at
             ELSE state = CASE WHEN status IS NULL THEN 'unknown' ELSE 'completed' END END
    ),
    ADD CONSTRAINT records_answer CHECK (
        (headers IS NULL) = (body IS NULL) AND (body IS NULL OR status IS NOT NULL)
    );

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
    ADD CONSTRAINT events_id PRIMARY KEY (key, at, id),
    -- Kept as it came: nothing searches in it, and taking it apart was a fifth of what writing an event took.
    ALTER COLUMN detail TYPE json;
-- The same write by the same caller under another key. The fingerprint first: it differs from write to write, so that
-- one comparison finds the place, and it knows the route.
DROP INDEX idemproxy.events_same_write;
CREATE INDEX events_same_write ON idemproxy.events (fingerprint, scope, at) WHERE event = 'first_write';
