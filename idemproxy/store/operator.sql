-- The statements for operators: finding and steering records, and what is written about them. None is on the way of
-- a client's request. Like those of queries.sql they stay within what a table distributed by key can do. What is
-- completed and what is open have indexes of their own (migration 0004): a statement says which of them it is about.
-- `attempt >= 1` is true of every record, and said only by what is to go along the index of what is open.

-- name: record_columns
-- What is shown of a record. Its answer's size is known without reading it.
key, scope, route, fingerprint, state, attempt, claimed_at, lease_until, settled_at, expires_at, status,
octet_length(body) AS size, lease_until > now() AS held, expires_at <= now() AS expired,
extract(epoch FROM lease_until - now())::float8 AS lease_left

-- name: lock_record
-- One record as it stands, kept so until the end of the transaction.
SELECT {record_columns}, token
  FROM idemproxy.records
 WHERE key = $1 AND scope = $2 AND route = $3
   FOR UPDATE;

-- name: show_record
-- One record; its answer only for those who ask.
SELECT {record_columns}, CASE WHEN $4 THEN headers END AS headers, CASE WHEN $4 THEN body END AS body
  FROM idemproxy.records
 WHERE key = $1 AND scope = $2 AND route = $3;

-- name: count_running
-- Never more than asked for: counting must not read millions of rows.
SELECT count(*) FROM (
    SELECT 1 FROM idemproxy.records
     WHERE attempt >= 1 AND state <> 'completed' AND state = 'claimed' AND lease_until > now() LIMIT $1
) AS few;

-- name: count_unknown
-- Lost answers, and claims whose owner has died.
SELECT count(*), extract(epoch FROM now() - min(claimed_at))::float8 AS oldest FROM (
    SELECT claimed_at FROM idemproxy.records
     WHERE attempt >= 1 AND state <> 'completed' AND (state = 'unknown' OR lease_until <= now()) AND expires_at > now()
     ORDER BY expires_at LIMIT $1
) AS few;

-- name: count_expired
-- What the sweep has still to do.
SELECT count(*) FROM (
    (SELECT 1 FROM idemproxy.records WHERE state = 'completed' AND expires_at <= now() LIMIT $1)
    UNION ALL
    (SELECT 1 FROM idemproxy.records
      WHERE attempt >= 1 AND state <> 'completed' AND expires_at <= now() LIMIT $1)
    LIMIT $1
) AS few;

-- name: estimate_total
-- As of the last vacuum or analyze; -1 when there was none yet.
SELECT reltuples::bigint FROM pg_class WHERE oid = 'idemproxy.records'::regclass;

-- name: delete_record
-- The token is the one that was locked: nobody can have changed it since.
DELETE FROM idemproxy.records WHERE key = $1 AND scope = $2 AND route = $3 AND token = $4;

-- name: resolve_record
-- An operator knows the answer. The new token turns away an owner that comes back late; the record lasts as long as
-- it would have from its own answer.
UPDATE idemproxy.records
   SET state = 'completed', settled_at = now(), token = $5, status = $6, headers = $7, body = $8,
       expires_at = now() + (expires_at - coalesce(settled_at, lease_until))
 WHERE key = $1 AND scope = $2 AND route = $3 AND token = $4;

-- name: write_change
INSERT INTO idemproxy.changes (key, scope, route, at, id, action, who, reason, before)
VALUES ($1, $2, $3, now(), $4, $5, $6, $7, $8::jsonb);

-- name: announce_purge
-- Whoever keeps answers in memory drops this one when the purge is committed.
SELECT pg_notify($1, $2);

-- name: write_resolved
-- The event that goes with an operator's verdict.
INSERT INTO idemproxy.events (key, scope, route, at, id, event, shadow, count, attempt, detail)
VALUES ($1, $2, $3, now(), $4, 'resolved', false, 1, $5, json_build_object('action', $6::text));

-- name: record_changes
SELECT at, action, who, reason, before FROM idemproxy.changes
 WHERE key = $1 AND scope = $2 AND route = $3
 ORDER BY at DESC, id DESC LIMIT $4;

-- name: latest_changes
SELECT key, scope, route, at, action, who, reason, before FROM idemproxy.changes
 ORDER BY at DESC LIMIT $1;

-- name: clock
-- In microseconds of Unix time.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: write_events
-- A batch of events, each at a time in microseconds; their commit need not wait for the disk. They are numbered by their
-- writer, from $7 on. Columns come as in queries.sql; a dash stands for nothing, and so does a fingerprint of zeros.
INSERT INTO idemproxy.events
    (key, scope, route, at, id, event, shadow, count, status, attempt, fingerprint, trace, detail)
SELECT happened.key, substr($4::bytea, 32 * n::int - 31, 32), happened.route,
       timestamptz 'epoch' + happened.at * interval '1 microsecond',
       $7::bigint + n, happened.event, happened.shadow, happened.count, happened.status, happened.attempt,
       nullif(substr($5::bytea, 33 * n::int - 32, 33), decode(repeat('00', 33), 'hex')), happened.trace,
       happened.detail::json
  FROM unnest(string_to_array($2, $1), string_to_array($3, $1), $6::text::bigint[], string_to_array($8, ' '),
              $9::text::boolean[], $10::text::int[], $11::text::smallint[], $12::text::int[],
              string_to_array($13, ' ', '-'), string_to_array($14, $1, '-')) WITH ORDINALITY
       AS happened (key, route, at, event, shadow, count, status, attempt, trace, detail, n),
       set_config('synchronous_commit', 'off', true);

-- name: record_events
SELECT at, event, shadow, count, status, attempt, trace, detail FROM idemproxy.events
 WHERE key = $1 AND scope = $2 AND route = $3
 ORDER BY at DESC, id DESC LIMIT $4;

-- name: latest_events
SELECT key, scope, route, at, event, shadow, count, status, attempt, trace, detail FROM idemproxy.events
 ORDER BY at DESC LIMIT $1;

-- name: find_same_writes
-- For each of these writes, at a time in microseconds, the nearest earlier one of the same caller, route and fingerprint
-- under another key. One look at the index each: where every write is the same, all of them together would be a square.
-- Columns come as in queries.sql.
SELECT wish.n, found.key, (extract(epoch FROM found.at) * 1000000)::bigint AS at
  FROM unnest(string_to_array($2, $1), string_to_array($3, $1), $6::text::bigint[]) WITH ORDINALITY
       AS wish (key, route, at, n)
 CROSS JOIN LATERAL (
           SELECT event.key, event.at FROM idemproxy.events AS event
            WHERE event.scope = substr($4::bytea, 32 * n::int - 31, 32) AND event.route = wish.route
              AND event.fingerprint = substr($5::bytea, 33 * n::int - 32, 33)
              AND event.event = 'first_write' AND event.key <> wish.key
              AND event.at < timestamptz 'epoch' + wish.at * interval '1 microsecond'
              AND event.at > timestamptz 'epoch' + wish.at * interval '1 microsecond' - $7::float8 * interval '1 second'
              AND event.shadow = $8
            ORDER BY event.at DESC LIMIT 1) AS found;

-- name: find_shadow_writes
-- What shadow mode has seen under these ids: first writes whose answers would have been kept.
SELECT wish.n, event.fingerprint, extract(epoch FROM now() - event.at)::float8 AS age,
       (event.detail->>'settled')::float8 / 1000 AS seconds
  FROM unnest($1::int[], $2::text[], $3::bytea[], $4::text[], $5::float8[]) AS wish (n, key, scope, route, ttl)
  JOIN idemproxy.events AS event
    ON event.key = wish.key AND event.scope = wish.scope AND event.route = wish.route
 WHERE event.event = 'first_write' AND event.shadow AND event.at > now() - wish.ttl * interval '1 second'
   AND (event.detail->>'kept')::boolean;

-- name: suspected_duplicates
SELECT key, scope, route, at, shadow, detail FROM idemproxy.events
 WHERE event = 'suspected_duplicate'
 ORDER BY at DESC LIMIT $1;

-- name: sweep_events
-- Delete one batch of events whose time is over.
DELETE FROM idemproxy.events
 WHERE (key, at, id) IN (
           SELECT key, at, id FROM idemproxy.events
            WHERE at <= now() - $1::float8 * interval '1 second'
            ORDER BY at LIMIT $2);
