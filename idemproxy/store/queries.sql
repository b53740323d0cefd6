-- Every statement of the store. Each runs by itself (autocommit) and takes whole batches, sorted by id, so that two
-- replicas lock rows in one order. The database's clock alone decides what has lapsed or expired.
-- Columns come as single values (store/columns.py): $1 separates the texts of $2 and $3, the keys and the routes; the
-- scopes of $4, like all that is equally long, stand one after the other, the n-th at n times their length; numbers are
-- the text of an array.
-- All of them stay within what a table distributed by key can do: no sequence, no ctid, no FOR UPDATE in the sweep.
-- Records are found by their primary key, item by item of the batch, whatever the planner believes of the table's size:
-- `key = ANY (ARRAY[...])` means `key = ...`, but cannot be merged, so that no plan walks the whole index (store/pool.py
-- has the rest of it); and what is asked of a record besides its key `IS TRUE`, where the planner would otherwise look
-- for it by expires_at. The statements of the sweep alone say that they want what is completed, or what is open: each
-- has its own index.

-- name: claim
-- Insert the claims whose ids are free; give back the tokens of those that won. Columns are unnested in the SELECT list,
-- row by row: in FROM each of them is first written out as a table, which cost a twentieth of the statement.
INSERT INTO idemproxy.records
    (key, scope, route, fingerprint, state, token, attempt, claimed_at, lease_until, expires_at)
SELECT key, substr($4::bytea, 32 * n - 31, 32), route, substr($5::bytea, 33 * n - 32, 33), 'claimed',
       substr($6::bytea, 16 * n - 15, 16), 1, now(), now() + lease * interval '1 second',
       now() + (lease + ttl) * interval '1 second'
  FROM (SELECT unnest(string_to_array($2, $1)) AS key, unnest(string_to_array($3, $1)) AS route,
               unnest($7::text::float8[]) AS lease, unnest($8::text::float8[]) AS ttl,
               generate_series(1, octet_length($6::bytea) / 16) AS n) AS wish
ON CONFLICT (key, scope, route) DO NOTHING
RETURNING token;

-- name: read
-- What is there under these ids. A second statement after the claim, because one that inserts and reads at once
-- does not see a winner that committed in between.
SELECT wish.n, record.fingerprint, record.state, record.token, record.attempt,
       record.lease_until <= now() AS lapsed,
       extract(epoch FROM record.lease_until - now())::float8 AS lease_left,
       extract(epoch FROM now() - record.expires_at)::float8 AS expired_since,
       record.status, record.headers, record.body
  FROM unnest(string_to_array($2, $1), string_to_array($3, $1)) WITH ORDINALITY AS wish (key, route, n)
  JOIN idemproxy.records AS record
    ON record.key = ANY (ARRAY[wish.key]) AND record.scope = substr($4::bytea, 32 * n::int - 31, 32)
   AND record.route = wish.route;

-- name: take_over
-- Claim records that have lapsed or expired and that still have the token the claimant saw. A lapsed one goes into
-- its next attempt; an expired one begins anew.
UPDATE idemproxy.records AS record
   SET fingerprint = substr($5::bytea, 33 * n::int - 32, 33), state = 'claimed',
       token = substr($6::bytea, 16 * n::int - 15, 16),
       attempt = CASE WHEN record.expires_at <= now() THEN 1 ELSE record.attempt + 1 END,
       claimed_at = now(), settled_at = NULL, status = NULL, headers = NULL, body = NULL,
       lease_until = now() + wish.lease * interval '1 second',
       expires_at = now() + (wish.lease + wish.ttl) * interval '1 second'
  FROM unnest(string_to_array($2, $1), string_to_array($3, $1), $7::text::float8[], $8::text::float8[])
       WITH ORDINALITY AS wish (key, route, lease, ttl, n)
 WHERE record.key = ANY (ARRAY[wish.key]) AND record.scope = substr($4::bytea, 32 * n::int - 31, 32)
   AND record.route = wish.route AND record.token = substr($9::bytea, 16 * n::int - 15, 16)
   AND (record.expires_at <= now() OR (record.state <> 'completed' AND record.lease_until <= now()))
RETURNING record.token, record.attempt;

-- name: renew
-- Extend leases that are still held.
UPDATE idemproxy.records AS record
   SET lease_until = now() + held.lease * interval '1 second',
       expires_at = now() + (held.lease + held.ttl) * interval '1 second'
  FROM unnest(string_to_array($2, $1), string_to_array($3, $1), $6::text::float8[], $7::text::float8[])
       WITH ORDINALITY AS held (key, route, lease, ttl, n)
 WHERE record.key = ANY (ARRAY[held.key]) AND record.scope = substr($4::bytea, 32 * n::int - 31, 32)
   AND record.route = held.route AND record.token = substr($5::bytea, 16 * n::int - 15, 16)
   AND record.state = 'claimed'
RETURNING record.token;

-- name: complete
-- Store answers. Run again after a commit in doubt, it changes nothing: the token is the same and so is the answer.
-- An owner whose lease lapsed unnoticed may still complete, as long as nobody else has taken over.
UPDATE idemproxy.records AS record
   SET state = 'completed', settled_at = now(), expires_at = now() + held.ttl * interval '1 second',
       status = held.status, headers = substr($11::bytea, held.starts, held.headers),
       body = substr($11::bytea, held.starts + held.headers, held.body)
  FROM unnest(string_to_array($2, $1), string_to_array($3, $1), $6::text::float8[], $7::text::int[], $8::text::int[],
              $9::text::int[], $10::text::int[]) WITH ORDINALITY
       AS held (key, route, ttl, status, starts, headers, body, n)
 WHERE record.key = ANY (ARRAY[held.key]) AND record.scope = substr($4::bytea, 32 * n::int - 31, 32)
   AND record.route = held.route AND record.token = substr($5::bytea, 16 * n::int - 15, 16)
RETURNING record.token;

-- name: claim_and_complete
-- Both, where both are waiting: one commit and one wait for the disk instead of two. The claims first, so that no replica
-- holds the row of an answer while it waits for another one's claim. A distributed table may refuse it; then, and whenever
-- it fails, the two are run one after the other.
WITH won AS (
{claim}
), done AS (
{complete}
)
SELECT token FROM won UNION ALL SELECT token FROM done;

-- name: mark_unknown
-- The request was sent and no whole answer came. The lease runs on: until it lapses the upstream may be at work.
UPDATE idemproxy.records AS record
   SET state = 'unknown', settled_at = now(), expires_at = now() + (held.lease + held.ttl) * interval '1 second'
  FROM unnest(string_to_array($2, $1), string_to_array($3, $1), $6::text::float8[], $7::text::float8[])
       WITH ORDINALITY AS held (key, route, lease, ttl, n)
 WHERE record.key = ANY (ARRAY[held.key]) AND record.scope = substr($4::bytea, 32 * n::int - 31, 32)
   AND record.route = held.route AND record.token = substr($5::bytea, 16 * n::int - 15, 16)
   AND record.state <> 'completed'
RETURNING record.token;

-- name: release
-- Nothing happened upstream, or its answer is not kept: the key is free again.
DELETE FROM idemproxy.records AS record
 USING unnest(string_to_array($2, $1), string_to_array($3, $1)) WITH ORDINALITY AS held (key, route, n)
 WHERE record.key = ANY (ARRAY[held.key]) AND record.scope = substr($4::bytea, 32 * n::int - 31, 32)
   AND record.route = held.route AND record.token = substr($5::bytea, 16 * n::int - 15, 16)
   AND record.state <> 'completed'
RETURNING record.token;

-- name: steps
-- What became of one key in these scopes, on every route. An expired record is gone, unless it stands as a tombstone.
SELECT route,
       CASE WHEN expires_at <= now() THEN 'expired'
            WHEN state = 'claimed' AND lease_until <= now() THEN 'unknown'
            WHEN state = 'claimed' THEN 'running'
            ELSE state END AS state,
       status, attempt, claimed_at, settled_at, expires_at
  FROM idemproxy.records
 WHERE key = $1 AND scope = ANY($2::bytea[]) AND (expires_at > now() - $3::float8 * interval '1 second') IS TRUE
 ORDER BY claimed_at LIMIT 1000;

-- name: expired
-- One batch of completed records whose time, and whose time as a tombstone, is over. It begins where the last one
-- ended: what lies behind has been deleted, but a vacuum has not yet taken it out of the index.
SELECT key, scope, route, expires_at
  FROM idemproxy.records
 WHERE state = 'completed' AND expires_at >= $1 AND expires_at <= now() - $2::float8 * interval '1 second'
 ORDER BY expires_at LIMIT $3;

-- name: given_up
-- The same of records that nobody has completed: their outcome stayed unknown until their time was over.
SELECT key, scope, route, expires_at
  FROM idemproxy.records
 WHERE attempt >= 1 AND state <> 'completed'
   AND expires_at >= $1 AND expires_at <= now() - $2::float8 * interval '1 second'
 ORDER BY expires_at LIMIT $3;

-- name: sweep
-- Delete those of a batch that have not been claimed anew since.
DELETE FROM idemproxy.records AS record
 USING unnest($1::text[], $2::bytea[], $3::text[]) AS old (key, scope, route)
 WHERE record.key = ANY (ARRAY[old.key]) AND record.scope = old.scope AND record.route = old.route
   AND (record.expires_at <= now() - $4::float8 * interval '1 second') IS TRUE
RETURNING record.key, record.scope, record.route;

-- name: answered
-- One batch of expired records that still have their answers. It begins where the last one ended: most of what lies
-- behind are tombstones that have lost theirs.
SELECT key, scope, route, expires_at
  FROM idemproxy.records
 WHERE state = 'completed' AND expires_at >= $1 AND expires_at <= now() - $2::float8 * interval '1 second'
   AND body IS NOT NULL
 ORDER BY expires_at LIMIT $3;

-- name: strip
-- Take the answers out of those of a batch that have not been claimed anew since: they stay as tombstones.
UPDATE idemproxy.records AS record SET headers = NULL, body = NULL
  FROM unnest($1::text[], $2::bytea[], $3::text[]) AS old (key, scope, route)
 WHERE record.key = ANY (ARRAY[old.key]) AND record.scope = old.scope AND record.route = old.route
   AND (record.expires_at <= now() - $4::float8 * interval '1 second') IS TRUE
RETURNING record.key, record.scope, record.route;

-- name: sweep_lock
-- One replica sweeps at a time. The lock ends with the transaction, so that it also works behind PgBouncer.
SELECT pg_try_advisory_xact_lock(hashtextextended('idemproxy.sweep', 0));

-- name: powerless
-- What this session's role would have to be granted, if it lacks any right that these statements and the operators' need.
SELECT current_user AS role,
       string_agg(format('GRANT %s ON idemproxy.%I TO "%s"', rights, place, current_user), '; ' ORDER BY n) AS remedy
  FROM (VALUES (1, 'records', 'SELECT, INSERT, UPDATE, DELETE'), (2, 'events', 'SELECT, INSERT, DELETE'),
               (3, 'changes', 'SELECT, INSERT')) AS needed (n, place, rights)
 WHERE NOT (SELECT bool_and(has_table_privilege('idemproxy.' || place, one))
              FROM unnest(string_to_array(rights, ', ')) AS one)
HAVING count(*) > 0;

-- name: durability
-- What a failover would cost, and whether this session has the setting it was opened with (a pooler drops it). A role
-- that may not see the state of the standbys sees that there are some, and whether any are waited for.
SELECT current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('idle_in_transaction_session_timeout') AS opened_with,
       count(*) > 0 AS standbys,
       coalesce(bool_or(sync_state IN ('sync', 'quorum')), false)
           OR (bool_and(sync_state IS NULL) AND current_setting('synchronous_standby_names') <> '') AS synchronous
  FROM pg_stat_replication
 WHERE state IS DISTINCT FROM 'backup';
