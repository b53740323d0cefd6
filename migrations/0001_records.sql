-- The records: one row per (key, scope, route), from the claim until it is swept.

CREATE SCHEMA IF NOT EXISTS idemproxy;

CREATE TABLE idemproxy.records (
    -- What a claim is unique by. The scope is a SHA-256: credentials are never stored.
    key          text COLLATE "C" NOT NULL,
    scope        bytea NOT NULL,
    route        text COLLATE "C" NOT NULL,

    -- Version byte and SHA-256 of the request: another request under the same key is refused.
    fingerprint  bytea NOT NULL,

    state        text COLLATE "C" NOT NULL,
    -- Made anew by each attempt. Only its holder may renew, settle or release.
    token        bytea NOT NULL,
    attempt      integer NOT NULL,

    claimed_at   timestamptz NOT NULL,
    -- Until here the owner is believed to be at work; later, the outcome counts as unknown.
    lease_until  timestamptz NOT NULL,
    settled_at   timestamptz,
    -- A hard ceiling: from here on the row is as good as gone, swept or not.
    expires_at   timestamptz NOT NULL,

    -- The answer. headers and body are NULL when it was too large to be kept, or when the record has expired.
    status       smallint,
    headers      bytea,
    body         bytea,

    -- The unique index that every promise stands on. It contains the distribution column of a sharded table.
    CONSTRAINT records_id PRIMARY KEY (key, scope, route),

    CONSTRAINT records_key_printable CHECK (key ~ '^[ -~]{1,255}$'),
    CONSTRAINT records_scope_hash CHECK (octet_length(scope) = 32),
    CONSTRAINT records_route_length CHECK (length(route) BETWEEN 1 AND 512),
    CONSTRAINT records_fingerprint_length CHECK (octet_length(fingerprint) = 33),
    CONSTRAINT records_token_length CHECK (octet_length(token) = 16),
    CONSTRAINT records_attempt_counts_from_one CHECK (attempt >= 1),
    CONSTRAINT records_state CHECK (state IN ('claimed', 'completed', 'unknown')),
    -- A live claim can never be expired: this is why the sweep needs to look at nothing but expires_at.
    CONSTRAINT records_claim_outlives_lease CHECK (state <> 'claimed' OR expires_at > lease_until),
    CONSTRAINT records_settled_has_time CHECK ((state = 'claimed') = (settled_at IS NULL)),
    CONSTRAINT records_completed_has_status CHECK ((state = 'completed') = (status IS NOT NULL)),
    CONSTRAINT records_status_is_final CHECK (status BETWEEN 200 AND 599),
    CONSTRAINT records_body_belongs_to_answer CHECK (
        (headers IS NULL) = (body IS NULL) AND (body IS NULL OR state = 'completed')
    )
);

-- For the sweep.
CREATE INDEX records_expires_at ON idemproxy.records (expires_at);
