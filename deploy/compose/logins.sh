#!/usr/bin/env bash
# The logins of the fleet, made by the server's container when it makes the database.
set -euo pipefail

secrets=${PGMILL_SECRETS:-/run/secrets}

psql -v ON_ERROR_STOP=1 --no-psqlrc --quiet -U "$POSTGRES_USER" -d "$POSTGRES_DB" \
    -v queue="$(cat "$secrets/queue-password")" -v tasks="$(cat "$secrets/tasks-password")" << 'SQL'
-- The schema finds it, and gives it its rights.
CREATE ROLE mill_worker NOLOGIN;
-- What workers look into the queue with.
CREATE ROLE fleet LOGIN PASSWORD :'queue' IN ROLE mill_worker;
-- What tasks run as: grant it what they need.
CREATE ROLE tasks LOGIN PASSWORD :'tasks';
SQL
