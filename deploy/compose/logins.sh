#!/usr/bin/env bash
# Creates the logins of the fleet, when the server's container initializes the database.
set -euo pipefail

secrets=${PGMILL_SECRETS:-/run/secrets}

psql -v ON_ERROR_STOP=1 --no-psqlrc --quiet -U "$POSTGRES_USER" -d "$POSTGRES_DB" \
    -v queue="$(cat "$secrets/queue-password")" -v tasks="$(cat "$secrets/tasks-password")" << 'SQL'
-- The schema grants privileges to this role.
CREATE ROLE mill_worker NOLOGIN;
-- Login of the workers for the queue.
CREATE ROLE fleet LOGIN PASSWORD :'queue' IN ROLE mill_worker;
-- Login of the tasks: grant it the privileges that tasks need.
CREATE ROLE tasks LOGIN PASSWORD :'tasks';
SQL
