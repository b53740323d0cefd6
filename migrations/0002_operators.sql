-- For operators: finding records without reading all of them, what happened to each, and who changed what and why.

-- The list in order of time, by caller and by route. Each begins with what is searched for, and ends in that order.
CREATE INDEX records_claimed_at ON idemproxy.records (claimed_at);
CREATE INDEX records_scope ON idemproxy.records (scope, claimed_at);
CREATE INDEX records_route ON idemproxy.records (route, claimed_at);
-- What is running or unknown: a handful among millions.
CREATE INDEX records_open ON idemproxy.records (claimed_at) WHERE state <> 'completed';

-- What happened to records. Written in batches off the hot path, kept for a time of its own. It points to no record:
-- a record may be gone long before its events, and events are no reason to keep one.
CREATE TABLE idemproxy.events (
    key          text COLLATE "C" NOT NULL,
    scope        bytea NOT NULL,
    route        text COLLATE "C" NOT NULL,
    at           timestamptz NOT NULL,
    -- Random, made by the writer: tells two events of one instant apart without a sequence.
    id           bigint NOT NULL,
    event        text COLLATE "C" NOT NULL,
    -- Whether it only would have happened: what shadow mode saw. No record stands behind such an event.
    shadow       boolean NOT NULL,
    -- How many alike came within one batch: a storm of retries is one row.
    count        integer NOT NULL,
    status       smallint,
    attempt      integer,
    fingerprint  bytea,
    trace        text,
    -- The steps of a write in milliseconds, or the other key of a suspected duplicate.
    detail       jsonb,

    CONSTRAINT events_id PRIMARY KEY (key, scope, route, at, id),
    CONSTRAINT events_event CHECK (event IN (
        'first_write', 'dedup_hit', 'conflict', 'in_flight', 'unknown', 'resolved', 'expired', 'suspected_duplicate')),
    CONSTRAINT events_count CHECK (count >= 1)
);

-- For the sweep and for the list of the latest.
CREATE INDEX events_at ON idemproxy.events (at);
-- The same write by the same caller under another key.
CREATE INDEX events_same_write ON idemproxy.events (scope, route, fingerprint, at) WHERE event = 'first_write';
CREATE INDEX events_suspected ON idemproxy.events (at) WHERE event = 'suspected_duplicate';

-- Every change that an operator made to a record. Never swept.
CREATE TABLE idemproxy.changes (
    key          text COLLATE "C" NOT NULL,
    scope        bytea NOT NULL,
    route        text COLLATE "C" NOT NULL,
    at           timestamptz NOT NULL,
    id           bigint NOT NULL,
    action       text COLLATE "C" NOT NULL,
    who          text NOT NULL,
    reason       text NOT NULL,
    -- What the record was before: state, attempt, times, status; never its body.
    before       jsonb NOT NULL,

    CONSTRAINT changes_id PRIMARY KEY (key, scope, route, at, id),
    CONSTRAINT changes_action CHECK (action IN ('release', 'resolve_happened', 'resolve_not_happened', 'purge')),
    CONSTRAINT changes_who CHECK (length(trim(who)) BETWEEN 1 AND 200),
    CONSTRAINT changes_reason CHECK (length(trim(reason)) BETWEEN 1 AND 2000)
);
CREATE INDEX changes_at ON idemproxy.changes (at);
