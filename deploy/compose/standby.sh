#!/bin/sh
# Copies the primary when there is nothing yet, then follows it under the name `standby`.
set -eu
export PGPASSWORD="$REPLICATION_PASSWORD"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    pg_basebackup --pgdata "$PGDATA" --write-recovery-conf --wal-method stream --checkpoint fast \
        --dbname "host=$PRIMARY port=${PGPORT:-5432} user=replicator application_name=standby"
fi
# Every address: the primary may have had it from its command line, which is not copied.
exec postgres -c listen_addresses='*' "$@"
