-- The schema of a target: a database, other than the queue's, in which tasks of pgmill run. Apply with
-- `pgmill target init` or psql, as a role that may create a schema. Applying the file again changes nothing.
--
-- A receipt is written in the transaction of the task, so effects and receipt commit together. A task has one
-- receipt, under a random id. The lock of its row orders an attempt that commits and a worker that resolves the
-- attempt.

BEGIN;

SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog;

CREATE SCHEMA IF NOT EXISTS mill_target;

DO $$
DECLARE
    owner name;
BEGIN
    -- Whoever may create schemas could have made this one, with triggers whose functions would run with the rights of
    -- the role that applies this file. A superuser is a member of every role, so only superusers protect a superuser.
    SELECT r.rolname INTO owner FROM pg_roles r WHERE r.oid IN (
            SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'mill_target'
            UNION ALL SELECT c.relowner FROM pg_class c WHERE c.relnamespace = 'mill_target'::regnamespace
            UNION ALL SELECT p.proowner FROM pg_proc p WHERE p.pronamespace = 'mill_target'::regnamespace)
        AND r.rolname <> current_user AND NOT r.rolsuper AND ((SELECT u.rolsuper FROM pg_roles u
            WHERE u.rolname = current_user) OR NOT pg_has_role(r.oid, 'USAGE')) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the schema mill_target, or an object in it, belongs to role "%"', owner
            USING ERRCODE = '55000', HINT = 'If this role has installed it, run pgmill target init as this role. '
                'Otherwise drop the schema first.';
    END IF;
END
$$;
COMMENT ON SCHEMA mill_target IS 'Receipts of tasks that pgmill has run in this database';

CREATE TABLE IF NOT EXISTS mill_target.receipts (
    task uuid PRIMARY KEY,
    epoch bigint NOT NULL,
    done boolean NOT NULL,
    rows bigint,
    ran interval,
    result jsonb,
    login regrole NOT NULL DEFAULT quote_ident(session_user)::regrole,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE mill_target.receipts IS 'One row per task that has succeeded here, or that a worker has resolved';
COMMENT ON COLUMN mill_target.receipts.task IS 'Receipt id of the task: mill.tasks.receipt in the queue';
COMMENT ON COLUMN mill_target.receipts.epoch IS 'An attempt commits only if its epoch is higher';
COMMENT ON COLUMN mill_target.receipts.done IS 'Whether the task has succeeded. It then commits never again';
COMMENT ON COLUMN mill_target.receipts.rows IS 'Rows returned or affected';
COMMENT ON COLUMN mill_target.receipts.result IS
    'Tasks of a run: first rows that the statement returned, which can be parameters of later tasks. If the encoding of '
    'the database is not UTF8: a string with the JSON document in ASCII';
COMMENT ON COLUMN mill_target.receipts.login IS
    'Login that wrote the receipt. Other logins cannot change or list it, except members of that role';
COMMENT ON COLUMN mill_target.receipts.ran IS 'Time from the start of the transaction to the receipt';
CREATE INDEX IF NOT EXISTS receipts_written ON mill_target.receipts (written_at);

CREATE TABLE IF NOT EXISTS mill_target.state (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    epoch bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE mill_target.state IS
    'Highest epoch of the queue that workers have stored here. If the queue knows a higher one, this database was '
    'restored to an earlier time';
INSERT INTO mill_target.state DEFAULT VALUES ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION mill_target.may_use(login oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    -- The server answers for a role that does not exist as for any other.
    SELECT pg_has_role(session_user, login, CASE WHEN current_setting('server_version_num')::integer >= 160000
            THEN 'USAGE, SET' ELSE 'MEMBER' END) OR NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = login)
$$;
COMMENT ON FUNCTION mill_target.may_use IS
    'Returns whether the session may use the receipts of a login. A role that was dropped protects nothing';

CREATE OR REPLACE FUNCTION mill_target.complete(task uuid, epoch bigint, xact xid8, row_count bigint,
    result jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    other mill_target.receipts;
BEGIN
    -- If the statement ended its transaction, this call runs in a later transaction.
    IF xact <> pg_current_xact_id() THEN
        RAISE EXCEPTION 'the task ended its own transaction' USING ERRCODE = 'MT002';
    END IF;
    INSERT INTO mill_target.receipts AS r (task, epoch, done, rows, ran, result)
        VALUES (complete.task, complete.epoch, true, row_count, clock_timestamp() - now(), complete.result)
        ON CONFLICT (task) DO UPDATE SET epoch = excluded.epoch, done = true, rows = excluded.rows,
            ran = excluded.ran, result = excluded.result, written_at = excluded.written_at
            WHERE NOT r.done AND r.epoch < excluded.epoch AND mill_target.may_use(r.login);
    IF NOT FOUND THEN
        SELECT r.* INTO other FROM mill_target.receipts r WHERE r.task = complete.task;
        IF other.done THEN
            RAISE EXCEPTION 'the task has already succeeded' USING ERRCODE = 'MT003';
        END IF;
        RAISE EXCEPTION 'the attempt is fenced by epoch %', other.epoch USING ERRCODE = 'MT004';
    END IF;
    -- The queue records the success next, so this commit must not be lost in a crash.
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;
COMMENT ON FUNCTION mill_target.complete IS
    'Writes the receipt of a task, in the transaction of the task. Error MT002: the current transaction is not the one '
    'that was begun for the task. Error MT003: the task has succeeded. Error MT004: the attempt is fenced, because it '
    'was resolved';

CREATE OR REPLACE FUNCTION mill_target.resolve(tasks uuid[], epochs bigint[])
RETURNS TABLE (task uuid, epoch bigint, done boolean, rows bigint, ran_seconds double precision,
    result jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    -- The queue records what this returns. If a worker has ended a COMMIT that waited for a standby, this call waits
    -- for it instead.
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    -- Waits for an attempt that has written its receipt and is about to commit.
    INSERT INTO mill_target.receipts AS r (task, epoch, done)
        SELECT s.task, s.epoch, false FROM unnest(tasks, epochs) AS s(task, epoch) ORDER BY s.task
        ON CONFLICT (task) DO UPDATE SET epoch = greatest(r.epoch, excluded.epoch)
            WHERE NOT r.done AND mill_target.may_use(r.login);
    RETURN QUERY SELECT r.task, r.epoch, r.done, r.rows, extract(epoch FROM r.ran)::double precision, r.result
        FROM mill_target.receipts r WHERE r.task = ANY (tasks) AND mill_target.may_use(r.login);
END
$$;
COMMENT ON FUNCTION mill_target.resolve IS
    'Resolves attempts: keeps attempts with these epochs or lower ones from committing, unless their task has '
    'succeeded. '
    'Returns what is known of each task';

CREATE OR REPLACE FUNCTION mill_target.store_epoch(stored bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before bigint;
BEGIN
    SELECT s.epoch INTO before FROM mill_target.state s FOR UPDATE;
    UPDATE mill_target.state s SET epoch = greatest(s.epoch, stored);
    RETURN before;
END
$$;
COMMENT ON FUNCTION mill_target.store_epoch IS
    'Stores an epoch of the queue unless it is lower. Returns the one before';

CREATE OR REPLACE FUNCTION mill_target.old_receipts(kept interval, max_count integer) RETURNS SETOF uuid
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.task FROM mill_target.receipts r WHERE r.written_at < now() - kept AND mill_target.may_use(r.login)
        ORDER BY r.written_at LIMIT max_count
$$;
COMMENT ON FUNCTION mill_target.old_receipts IS 'Returns receipts that are older than this, the oldest first';

CREATE OR REPLACE FUNCTION mill_target.forget(tasks uuid[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH gone AS (DELETE FROM mill_target.receipts r WHERE r.task = ANY (tasks)
        AND r.written_at < now() - interval '1 hour' AND mill_target.may_use(r.login) RETURNING 1)
    SELECT count(*) FROM gone
$$;
COMMENT ON FUNCTION mill_target.forget IS
    'Deletes receipts. Only for tasks whose end the queue has recorded. Receipts of the last hour remain';

CREATE OR REPLACE FUNCTION mill_target.missing(tasks uuid[]) RETURNS SETOF uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.task FROM unnest(tasks) AS t(task)
    WHERE NOT EXISTS (SELECT FROM mill_target.receipts r WHERE r.task = t.task AND r.done)
$$;
COMMENT ON FUNCTION mill_target.missing IS 'Returns the tasks of this list that have no receipt of a success';

-- Conditions of the target, which workers check while one of them is set. The functions record_wal_position,
-- replication_lags and hold_reason are those of the queue (schema/06_queue_conditions.sql), in another schema.
CREATE UNLOGGED TABLE IF NOT EXISTS mill_target.wal_positions (
    written_at timestamptz PRIMARY KEY,
    lsn pg_lsn NOT NULL
);
COMMENT ON TABLE mill_target.wal_positions IS
    'Positions in the WAL with their times, about one per second while conditions are checked, for '
    'mill_target.replication_lags';

CREATE OR REPLACE FUNCTION mill_target.record_wal_position() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ahead CONSTANT interval := (SELECT max(p.written_at) FROM mill_target.wal_positions p) - clock_timestamp();
BEGIN
    IF ahead > '0' THEN
        -- The clock was set back. The positions keep their distances in time, so that a standby that lags still lags.
        WITH moved AS (DELETE FROM mill_target.wal_positions p RETURNING p.written_at, p.lsn)
        INSERT INTO mill_target.wal_positions (written_at, lsn) SELECT m.written_at - ahead, m.lsn FROM moved m
            ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO mill_target.wal_positions (written_at, lsn) VALUES (clock_timestamp(), pg_current_wal_flush_lsn())
        ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION mill_target.record_wal_position IS
    'Stores the current position in the WAL. If the clock was set back, moves the times of the other positions with it';

CREATE OR REPLACE FUNCTION mill_target.replication_lags() RETURNS TABLE (standby text, lag interval)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.application_name, coalesce(clock_timestamp() - (SELECT min(p.written_at) FROM mill_target.wal_positions p
        WHERE p.lsn > r.replay_lsn), '0')
    FROM pg_stat_replication r WHERE r.replay_lsn IS NOT NULL AND r.state IN ('catchup', 'streaming')
$$;
COMMENT ON FUNCTION mill_target.replication_lags IS
    'Connected standbys, and how long ago the primary wrote what a standby has not replayed';

CREATE OR REPLACE FUNCTION mill_target.hold_reason(max_replication_lag interval, max_snapshot_age interval,
    max_active_sessions integer) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    worst record;
    sessions bigint;
BEGIN
    IF max_replication_lag IS NOT NULL THEN
        SELECT l.standby, l.lag INTO worst FROM mill_target.replication_lags() l
            WHERE l.lag > max_replication_lag ORDER BY l.lag DESC LIMIT 1;
        IF FOUND THEN
            RETURN format('the replication lag of standby %s is %s s, above %s s', worst.standby,
                floor(extract(epoch FROM worst.lag)), trim_scale(extract(epoch FROM max_replication_lag)::numeric));
        END IF;
    END IF;
    IF max_snapshot_age IS NOT NULL THEN
        SELECT s.holder, s.age INTO worst FROM (
            SELECT format('session %s of user %s', a.pid, a.usename) AS holder, clock_timestamp() - a.xact_start AS age
            FROM pg_stat_activity a
            WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
                AND num_nonnulls(a.backend_xmin, a.backend_xid) > 0
            UNION ALL
            SELECT format('prepared transaction %s', p.gid), clock_timestamp() - p.prepared
            FROM pg_prepared_xacts p WHERE p.database = current_database()) AS s
        WHERE s.age > max_snapshot_age ORDER BY s.age DESC LIMIT 1;
        IF FOUND THEN
            RETURN format('the snapshot of %s is %s s old, above %s s', worst.holder,
                floor(extract(epoch FROM worst.age)), trim_scale(extract(epoch FROM max_snapshot_age)::numeric));
        END IF;
    END IF;
    IF max_active_sessions IS NOT NULL THEN
        SELECT count(*) INTO sessions FROM pg_stat_activity a
            WHERE a.backend_type = 'client backend' AND a.state = 'active' AND a.pid <> pg_backend_pid();
        IF sessions > max_active_sessions THEN
            RETURN format('%s active, above %s', CASE sessions WHEN 1 THEN '1 session is'
                ELSE sessions || ' sessions are' END, max_active_sessions);
        END IF;
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mill_target.hold_reason IS
    'Returns which of these conditions does not hold; null: all of them hold';

CREATE OR REPLACE FUNCTION mill_target.check_conditions(max_replication_lag interval, max_snapshot_age interval,
    max_active_sessions integer) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The server hides the state of other sessions and of standbys from other roles, so no condition would ever fail.
    IF NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') THEN
        RAISE EXCEPTION 'the owner of schema mill_target may not see the sessions of the server'
            USING ERRCODE = '42501', HINT = format('GRANT pg_monitor TO %I', current_user);
    END IF;
    PERFORM mill_target.record_wal_position();
    DELETE FROM mill_target.wal_positions p
        WHERE p.written_at < now() - interval '1 minute' - coalesce(max_replication_lag, '0');
    RETURN mill_target.hold_reason(max_replication_lag, max_snapshot_age, max_active_sessions);
END
$$;
COMMENT ON FUNCTION mill_target.check_conditions IS
    'Returns why the target is held back under these conditions at this moment; null: all of them hold';

-- `pgmill target init` grants USAGE on the schema and EXECUTE on these functions to the logins of workers.
REVOKE ALL ON ALL TABLES IN SCHEMA mill_target FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA mill_target FROM PUBLIC;

COMMIT;
