#!/bin/sh
# `on`: a commit is acknowledged only when the standby has it too. `off`: by the primary alone.
# It talks to the server that PGHOST, PGUSER and PGPASSWORD name.
set -eu
case ${1:-} in
on) names='ANY 1 (standby)' ;;
off) names='' ;;
*) echo "usage: synchronous.sh on|off" >&2 && exit 2 ;;
esac
psql --quiet --set ON_ERROR_STOP=1 --dbname "${POSTGRES_DB:-idemproxy}" --set names="$names" <<'SQL'
ALTER SYSTEM SET synchronous_standby_names = :'names';
SELECT pg_reload_conf();
SQL
