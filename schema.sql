-- Generated from schema/ by `make schema`: change the files there, not this one.

-- schema/00_begin.sql -----------------------------------------------------------------------------

-- Schema of pgmill: the interface between enqueue, worker and psql.
--
-- Apply with `psql -f schema.sql` or `pgmill init`, as superuser or as a role with CREATEROLE and
-- CREATE on the database. Applying the file again changes nothing.
--
-- Contents, in the order in which a task passes through the files (make schema writes the list):
--
--   01_roles                      117  Roles: the owner of all objects, and the rights of programs and people
--   02_types                      278  Types: enums and domains
--   03_settings                   387  Settings of the fleet, version of the schema, and audit of actions
--   04_capacity                   603  Capacity: priorities, queues, profiles, groups and limits
--   05_maintenance               1149  Maintenance windows: periods in which the whole fleet is paused
--   06_queue_conditions          1250  Conditions of queues: workers claim nothing while one does not hold
--   07_routines                  1418  Routines of profiles: a profile restricted to calls of allowed routines
--   08_targets                   1505  Targets: other databases in which tasks run
--   09_tasks                     1758  Tasks: live tasks and their deduplication keys
--   10_attempts                  2136  Attempts: the history, in daily partitions
--   11_prune                     2288  Prune: deletes what is older than its retention, or no longer needed
--   12_workers                   2547  Workers: live ones with their heartbeats, cancel requests, progress
--   13_limits                    2689  Limits of a task: which ones apply, and the creation of missing ones
--   14_permits                   2866  Permits: blocked <-> pending
--   15_suspects                  3385  Suspects: tasks that ran when the server crashed
--   16_watched_lanes             3496  Watched lanes: whether an enqueue has to wake a worker
--   17_enqueue                   3601  Enqueue: -> scheduled | blocked | pending, in the caller's transaction
--   18_notifications             4040  Notifications: which events are reported to whom, and the outbox
--   19_finish                    4282  Finish: complete, fail, release, reclaim: running -> the other states
--   20_notification_delivery     4783  Delivery of notifications: claim, end of an attempt, backlogs
--   21_operator                  5178  Operator functions: cancel, retry, pause, resume, drain
--   22_subscriptions             5628  Subscriptions: functions for operators, and status for viewers
--   23_task_changes              5925  Changes of waiting tasks: -> scheduled | blocked | pending
--   24_task_purge                6071  Purge: all waiting tasks of a queue -> finished
--   25_jobs                      6105  Jobs: named sets of tasks with edges
--   26_dependencies              6650  Dependencies: edges that hold in every run that contains both tasks
--   27_job_versions              6821  Versions of jobs: what each change of a definition changed
--   28_schedules                 6867  Schedules: when jobs run automatically
--   29_runs                      7463  Runs: tables, start, tasks added later
--   30_unstored                  8045  Unstored data of runs: erased when the run ends
--   31_run_advance               8110  Advance of runs: waiting -> ready -> released -> finished
--   32_run_approvals             8598  Approvals: tasks of a run that a person has to approve
--   33_run_control               8714  Control of runs: cancel, restart, rerun, and the retry of a task
--   34_run_deadlines             8985  Deadlines and timeouts of runs
--   35_run_notifications         9114  Notifications of the end of a run, in its transaction
--   36_run_status                9189  Status of runs: their tasks by state
--   37_schedule_backfills        9247  Backfills: runs of a schedule for instants in the past
--   38_schedule_run_now          9529  Runs of schedules that an operator starts
--   39_schedule_ticks            9591  Ticks of schedules: whether a due schedule fires, its runs and its log
--   40_idempotency              10146  Idempotency keys of requests
--   41_schedule_views           10208  Status of schedules, the runs that they fired, and a dry run of a tick
--   42_views                    10418  Monitoring: running tasks, status, history, failures, run times
--   43_citus                    10830  Citus: exactly once for tasks that write distributed tables
--   44_sequences                10890  Sequences that are behind the rows of their tables
--   45_wait                     10981  Wait: procedures that return when a task or a run has ended
--   46_why                      11063  Why: one sentence about a task or a run
--   47_grants                   11463  Privileges on all objects, and the end of the transaction
--   48_statistics               11534  ANALYZE of tables that hold rows and have no statistics
--
-- All names are schema-qualified and search_path is pg_catalog throughout, so that objects in a caller's
-- schema cannot shadow them. PostgreSQL checks SQL functions, views and the types of variables when it
-- creates them, so the files create each object before the objects that use it.
--
-- Planner settings. Some tables are empty one moment and full the next, so statistics lag behind them, and a session
-- keeps a plan that it made while a table was small. Functions whose cost must not depend on that set the planner in
-- their heads. enable_seqscan and enable_bitmapscan = off leave probes of an index, which LIMIT ends early;
-- enable_hashjoin and enable_mergejoin = off leave lookups from the few rows at hand; enable_nestloop = off joins two
-- large sets as sets. plan_cache_mode = force_generic_plan saves the planning in calls that are shorter than it;
-- force_custom_plan is for a plan that depends on the arguments. The cost that the planner adds for what is off would
-- start the JIT compiler, for about 150 ms: jit is off, too. Settings choose neither the index nor the order of a join.
-- Statements do: by ORDER BY with LIMIT, ranges in place of equations, MATERIALIZED, and LATERAL with LIMIT, whose
-- sides the planner cannot swap. A function without settings has those of its caller. Tests count the blocks that calls
-- read: without statistics (tests/guarantees/server/statistics.rs), with plans from small tables (tests/runs/run.rs,
-- tests/guarantees/claim.rs) and among dead rows (dead_rows.rs). database_settings.rs sets the opposite for a database.
--
-- The transaction begins here and ends in 47_grants.sql.

BEGIN;

SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog;
-- Where and how the tables are stored is no matter of a setting of the database.
SET LOCAL default_tablespace = '';
SET LOCAL default_table_access_method = heap;

-- Version of this schema, and the oldest version whose programs can use it. No other place repeats these
-- numbers: the programs read their own schema version from the next line (crates/queue/src/schema.rs).
SET LOCAL mill.version = '1';
SET LOCAL mill.min_compatible_version = '1';

DO $$
BEGIN
    -- In another encoding, a worker could not read each statement, nor store each result.
    IF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'the encoding of database "%" is %, not UTF8', current_database(),
            current_setting('server_encoding') USING ERRCODE = '0A000',
            HINT = 'Use a database that was created with ENCODING ''UTF8'' TEMPLATE template0.';
    END IF;
    -- Serializes sessions that install the schema, which would fail if they created the same object. A session of
    -- another program that holds this lock must not keep them from their work. Once the schema exists, 01_roles.sql
    -- locks a table instead.
    IF current_setting('mill.copy', true) IS DISTINCT FROM 'on' THEN
        FOR tries IN 1..100 LOOP
            EXIT WHEN pg_try_advisory_xact_lock(7236270911);
            PERFORM pg_sleep(0.1);
        END LOOP;
    END IF;
    IF EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'citus') THEN
        -- The schema exists on the coordinator only. Citus would create its roles on the data nodes, too, and then
        -- connect to these nodes as mill_owner, which cannot log in.
        PERFORM set_config('citus.enable_ddl_propagation', 'off', true);
    END IF;
END
$$;

-- schema/01_roles.sql -----------------------------------------------------------------------------

-- Roles: the owner of all objects, and the rights of programs and people.
--
-- mill_owner owns every object. mill_worker is for the control sessions of workers. mill_producer
-- enqueues tasks and starts runs. mill_viewer reads. mill_operator controls the fleet and has the
-- rights of mill_producer and mill_viewer. None of these roles can log in; the logins of people and
-- programs are made members of them.
--
-- Roles belong to the cluster and may exist already. The schema may exist, too: then the end of this file checks its
-- owner and its version. The files after this one run as mill_owner.

DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY
        ARRAY['mill_owner', 'mill_worker', 'mill_operator', 'mill_producer', 'mill_viewer']
    LOOP
        IF to_regrole(role_name) IS NULL THEN
            -- Roles belong to the cluster, so another database may be creating the same role at the same
            -- time. In that case CREATE ROLE waits for the other transaction and then fails, which is
            -- ignored.
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    IF NOT pg_has_role('mill_operator', 'mill_viewer', 'USAGE')
        OR NOT pg_has_role('mill_operator', 'mill_producer', 'USAGE')
    THEN
        GRANT mill_viewer, mill_producer TO mill_operator;
    END IF;
    -- A superuser can already act as every role. Since PostgreSQL 16, the creator of a role becomes a
    -- member that can grant the role but cannot act as it, and has to grant the role to itself.
    IF NOT pg_has_role(current_user, 'mill_owner',
        CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'SET' ELSE 'MEMBER' END)
    THEN
        BEGIN
            EXECUTE format('GRANT mill_owner TO %I', current_user);
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE EXCEPTION 'role "%" may not apply the schema', current_user
                USING ERRCODE = '42501',
                    HINT = 'Apply it as superuser, or as a role with CREATEROLE that is a member of mill_owner.';
        END;
    END IF;
    -- mill_worker needs these roles because the reclaimer finds and terminates the backends of a dead
    -- worker. mill_owner needs pg_read_all_stats because its functions show the wait events of the
    -- backends of running tasks. If the current role cannot grant these roles (PostgreSQL 16 and later
    -- require ADMIN OPTION), a warning is raised, and `pgmill doctor` reports the missing grants.
    IF NOT pg_has_role('mill_worker', 'pg_read_all_stats', 'USAGE')
        OR NOT pg_has_role('mill_worker', 'pg_signal_backend', 'USAGE')
        OR NOT pg_has_role('mill_owner', 'pg_read_all_stats', 'USAGE')
    THEN
        BEGIN
            GRANT pg_read_all_stats, pg_signal_backend TO mill_worker;
            GRANT pg_read_all_stats TO mill_owner;
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE WARNING 'could not grant pg_read_all_stats and pg_signal_backend'
                USING HINT = 'As superuser: GRANT pg_read_all_stats, pg_signal_backend TO '
                    'mill_worker; GRANT pg_read_all_stats TO mill_owner;';
        END;
    END IF;
END
$$;

CREATE SCHEMA IF NOT EXISTS mill AUTHORIZATION mill_owner;

DO $$
DECLARE
    owner name := (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'mill');
    own integer := current_setting('mill.version');
    found integer;
BEGIN
    -- Whoever may create schemas could have made this one, with views and triggers whose functions would run with the
    -- rights of the role that applies this file. SET ROLE protects from nothing, because a function can reset it.
    IF owner <> 'mill_owner' THEN
        RAISE EXCEPTION 'the schema mill belongs to role "%", not to mill_owner', owner USING ERRCODE = '55000',
            HINT = 'Drop the schema if pgmill has not created it, and then install pgmill.';
    END IF;
    IF to_regclass('mill.schema_version') IS NOT NULL THEN
        EXECUTE 'SELECT version FROM mill.schema_version' INTO found;
        IF found <> own THEN
            RAISE EXCEPTION 'this database holds version % of the schema, this file is version %', found, own
                USING HINT = CASE WHEN found < own
                    THEN format('Upgrade it with pgmill init, which applies schema/migrations/%s_*.sql to '
                        '%s_*.sql of your version of pgmill; pgmill init --dry-run prints them for psql.',
                        lpad((found + 1)::text, 3, '0'), lpad(own::text, 3, '0'))
                    ELSE 'Use the schema.sql of your version of pgmill.' END;
        END IF;
    END IF;
END
$$;
SET LOCAL ROLE mill_owner;
DO $$
BEGIN
    -- One session applies this file, or a migration, at a time.
    IF to_regclass('mill.schema_version') IS NOT NULL THEN
        LOCK TABLE mill.schema_version IN SHARE ROW EXCLUSIVE MODE;
    END IF;
END
$$;
COMMENT ON SCHEMA mill IS 'pgmill: a fleet of workers that run SQL tasks';

-- Default privileges of mill_owner, as a rule for all roles of a server sets them, would give other roles rights on
-- each object of this schema. They end here, and with them the rights that they have given.
DO $$
DECLARE
    rule record;
BEGIN
    FOR rule IN
        SELECT CASE d.defaclobjtype WHEN 'r' THEN 'TABLES' WHEN 'S' THEN 'SEQUENCES' WHEN 'f' THEN 'ROUTINES'
                WHEN 'T' THEN 'TYPES' WHEN 'n' THEN 'SCHEMAS' ELSE 'LARGE OBJECTS' END AS objects,
            coalesce('IN SCHEMA ' || quote_ident(n.nspname), '') AS place,
            CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END AS grantee,
            d.defaclnamespace IN (0, 'mill'::regnamespace) AND (r.rolname IN ('mill_worker', 'mill_operator',
                'mill_producer', 'mill_viewer')) IS NOT TRUE AS in_schema
        FROM pg_default_acl d LEFT JOIN pg_namespace n ON n.oid = d.defaclnamespace
            CROSS JOIN aclexplode(d.defaclacl) x LEFT JOIN pg_roles r ON r.oid = x.grantee
        -- PUBLIC may use each new routine and each new type anyway.
        WHERE d.defaclrole = 'mill_owner'::regrole AND x.grantee <> d.defaclrole
            AND NOT (x.grantee = 0 AND d.defaclobjtype IN ('f', 'T'))
        GROUP BY 1, 2, 3, 4
    LOOP
        EXECUTE format('ALTER DEFAULT PRIVILEGES %s REVOKE ALL ON %s FROM %s', rule.place, rule.objects, rule.grantee);
        IF rule.in_schema AND rule.objects IN ('TABLES', 'SEQUENCES', 'ROUTINES') THEN
            EXECUTE format('REVOKE ALL ON ALL %s IN SCHEMA mill FROM %s', rule.objects, rule.grantee);
        ELSIF rule.in_schema AND rule.objects = 'SCHEMAS' THEN
            EXECUTE format('REVOKE ALL ON SCHEMA mill FROM %s', rule.grantee);
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION mill.membership_rights() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END
$$;
COMMENT ON FUNCTION mill.membership_rights IS
    'Returns the argument of pg_has_role with which it finds out whether a role may use the rights of another one: it '
    'has them (INHERIT), or can assume them (SET). Since PostgreSQL 16, a membership may give neither';
GRANT EXECUTE ON FUNCTION mill.membership_rights TO mill_producer, mill_viewer;

CREATE OR REPLACE FUNCTION mill.may_act_as(role oid, allowed text[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    -- Thousands of roles may be allowed, and pg_has_role is slow: it is asked about the roles that can be the answer.
    WITH RECURSIVE candidate (oid) AS (
        SELECT may_act_as.role UNION SELECT 'pg_database_owner'::regrole
        UNION SELECT m.roleid FROM candidate c JOIN pg_auth_members m ON m.member = c.oid
    )
    SELECT EXISTS (SELECT FROM candidate c JOIN pg_roles r ON r.oid = c.oid
            WHERE r.rolname::text = ANY (allowed) AND pg_has_role(may_act_as.role, r.oid, mill.membership_rights()))
        OR EXISTS (SELECT FROM pg_roles u JOIN pg_roles r ON r.rolname::text = ANY (allowed)
            WHERE u.oid = may_act_as.role AND u.rolsuper)
$$;
COMMENT ON FUNCTION mill.may_act_as IS
    'Returns whether a role is one of these roles, or may use the rights of one of them: profiles.allowed';
GRANT EXECUTE ON FUNCTION mill.may_act_as TO mill_producer, mill_viewer;

-- schema/02_types.sql -----------------------------------------------------------------------------

-- Types: enums and domains.
--
-- The programs have the same enums (tests/project/schema.rs compares them).

DO $$
BEGIN
    IF to_regtype('mill.state') IS NULL THEN
        CREATE TYPE mill.state AS ENUM ('scheduled', 'blocked', 'pending', 'running');
        CREATE TYPE mill.outcome AS ENUM
            ('succeeded', 'failed', 'cancelled', 'timed_out', 'lost', 'unknown', 'interrupted');
        CREATE TYPE mill.priority AS ENUM ('low', 'normal', 'high', 'critical', 'reserved');
        CREATE TYPE mill.mode AS ENUM ('transaction', 'autocommit');
        CREATE TYPE mill.isolation AS ENUM ('read_committed', 'repeatable_read', 'serializable');
        CREATE TYPE mill.backoff AS ENUM ('fixed', 'exponential');
        CREATE TYPE mill.limit_kind AS ENUM ('key', 'group', 'queue', 'crash');
        CREATE TYPE mill.reserved_capacity AS ENUM ('none', 'low', 'medium', 'high');
        CREATE TYPE mill.expected AS ENUM ('succeeded', 'failed', 'finished', 'always');
        CREATE TYPE mill.join_mode AS ENUM ('all', 'any');
        CREATE TYPE mill.run_state AS ENUM ('running', 'succeeded', 'failed', 'cancelled');
        CREATE TYPE mill.run_task_state AS ENUM
            ('waiting', 'ready', 'released', 'succeeded', 'failed', 'cancelled', 'upstream_failed', 'skipped');
        CREATE TYPE mill.fire_mode AS ENUM ('manual', 'scheduled', 'triggered');
        CREATE TYPE mill.overlap AS ENUM ('skip', 'queue', 'allow');
        CREATE TYPE mill.declared_in AS ENUM ('comment', 'file', 'call');
        CREATE TYPE mill.schedule_event AS ENUM
            ('fired', 'skipped', 'completed', 'error', 'missed', 'reclaimed');
        CREATE TYPE mill.backfill_state AS ENUM ('running', 'paused', 'finished', 'cancelled');
        -- These checks belong to domains and not to the table: PostgreSQL would parse and evaluate
        -- checks of mill.tasks again in every claim, which would take a third of the time of the claim.
        -- No BETWEEN beside another condition: restored from a dump, such a check reads differently.
        CREATE DOMAIN mill.queue_name AS text CONSTRAINT queue_name CHECK (
            octet_length(VALUE) >= 1 AND octet_length(VALUE) <= 128 AND ltrim(VALUE,
                'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-') = '');
        CREATE DOMAIN mill.profile_name AS text CONSTRAINT profile_name CHECK (
            octet_length(VALUE) <= 63 AND ltrim(VALUE,
                'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-') = '');
        CREATE DOMAIN mill.label AS text
            CONSTRAINT label_length CHECK (octet_length(VALUE) BETWEEN 1 AND 512);
        CREATE DOMAIN mill.statement AS text
            CONSTRAINT statement_not_empty CHECK (octet_length(VALUE) > 0);
        CREATE DOMAIN mill.attempt_limit AS integer
            CONSTRAINT max_attempts_range CHECK (VALUE BETWEEN 1 AND 10000);
        CREATE DOMAIN mill.attempt_count AS integer
            CONSTRAINT count_not_negative CHECK (VALUE >= 0);
        CREATE DOMAIN mill.retry_interval AS interval
            CONSTRAINT retry_interval_range CHECK (VALUE BETWEEN '0' AND '365 days');
        CREATE DOMAIN mill.time_limit AS interval
            CONSTRAINT timeout_range CHECK (VALUE > '0' AND VALUE <= '365 days');
        -- The programs' date and time types do not support times outside this range.
        CREATE DOMAIN mill.due_time AS timestamptz CONSTRAINT due_at_range
            CHECK (VALUE BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-30 22:00:00+00');
    END IF;
END
$$;
COMMENT ON DOMAIN mill.profile_name IS
    'Name of a profile: up to 63 letters, digits and _ . : -. Empty for the default task login';
COMMENT ON DOMAIN mill.queue_name IS 'Name of a queue: 1 to 128 letters, digits and _ . : -';
COMMENT ON DOMAIN mill.label IS 'Name or deduplication key of a task: 1 to 512 bytes';
COMMENT ON DOMAIN mill.statement IS 'SQL of a task, not empty';
COMMENT ON DOMAIN mill.attempt_limit IS 'Maximum number of failed attempts, 1 to 10000';
COMMENT ON DOMAIN mill.attempt_count IS 'Number of attempts, 0 or more';
COMMENT ON DOMAIN mill.retry_interval IS 'Wait before the next attempt, up to 365 days';
COMMENT ON DOMAIN mill.time_limit IS 'Maximum run time of an attempt, up to 365 days';
COMMENT ON DOMAIN mill.due_time IS 'Time at which a task is due, within the years 1 to 9999';

COMMENT ON TYPE mill.state IS
    'State of a live task: scheduled (not due yet), blocked (waits for a permit), pending (can be claimed) or running';
COMMENT ON TYPE mill.outcome IS
    'Outcome of an attempt. lost: the worker of the attempt died. unknown: the statement must run at most once, and '
    'it is not known whether it ended';
COMMENT ON TYPE mill.priority IS 'Priority of a task, lowest first';
COMMENT ON TYPE mill.mode IS
    'transaction: the statement and its completion commit together (exactly once). autocommit: for VACUUM, CREATE '
    'INDEX CONCURRENTLY and CALL with COMMIT (at least once)';
COMMENT ON TYPE mill.isolation IS 'Isolation level of the transaction of a task';
COMMENT ON TYPE mill.limit_kind IS
    'Kinds of objects that limits apply to. A task acquires its permits in this order, the most specific kind first. '
    'So a task that waits for the permit of its key holds no permit of its group or queue that another task could use';
COMMENT ON TYPE mill.reserved_capacity IS
    'Share of the fleet''s readers that run only tasks of priority reserved: none, low (10 percent), medium (15 '
    'percent) or high (25 percent)';
COMMENT ON TYPE mill.expected IS
    'Outcome that an edge requires of its parent: succeeded; failed (includes timed out, lost and unknown); finished '
    '(any outcome, including cancelled); or always (any outcome, also if the parent is upstream_failed or skipped)';
COMMENT ON TYPE mill.join_mode IS 'Whether a task waits for all of its parents or for any one of them';
COMMENT ON TYPE mill.run_state IS
    'State of a run. A finished run has the first of these states that applies: cancelled, if the run itself was '
    'cancelled; failed, if a task without ignore_failure failed; cancelled, if a task was cancelled; succeeded';
COMMENT ON TYPE mill.run_task_state IS
    'State of a task of a run: waiting (for its parents), ready, released (in the queue or running), or its final '
    'state. upstream_failed: the task cannot start, because a parent failed, was cancelled or is itself '
    'upstream_failed. skipped: the task cannot start although no parent failed, because its branch was not taken';
COMMENT ON TYPE mill.fire_mode IS
    'How a schedule fires: only manually (manual), by time (scheduled), or by the contents of a table (triggered)';
COMMENT ON TYPE mill.overlap IS
    'Handling of a fire while a run of the schedule is in progress. skip: the fire is skipped. queue: the fire '
    'waits until that run finishes; at most one fire waits. allow: the fire starts another run';
COMMENT ON TYPE mill.declared_in IS
    'Place where a schedule is declared, and where its timing has to be changed: the COMMENT of a procedure, a file, '
    'or a call of mill.set_schedule';
COMMENT ON TYPE mill.schedule_event IS
    'Event of a schedule. completed: a run of the schedule finished. missed: fires were not started because no '
    'worker ticked in time. reclaimed: the worker of a task of a run died';
COMMENT ON TYPE mill.backoff IS 'Growth of the wait before a retry: fixed, or doubled with each failure';
COMMENT ON TYPE mill.backfill_state IS
    'State of a backfill: running, paused, finished (all its runs have ended) or cancelled';

-- schema/03_settings.sql --------------------------------------------------------------------------

-- Settings of the fleet, version of the schema, and audit of actions.
--
-- Also decides whether the current user may read statements.
--
-- An action and its audit row commit together or not at all. Only functions of mill_owner write to
-- mill.audit.

CREATE TABLE IF NOT EXISTS mill.schema_version (
    version integer NOT NULL,
    min_compatible_version integer NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    CONSTRAINT compatible_with_itself CHECK (min_compatible_version <= version)
);
COMMENT ON TABLE mill.schema_version IS
    'Version of this schema, one row. Programs refuse to work with an incompatible version';
COMMENT ON COLUMN mill.schema_version.min_compatible_version IS
    'Oldest compatible version. Programs that were built for an older version of the schema refuse to use this schema';
INSERT INTO mill.schema_version (version, min_compatible_version)
    VALUES (current_setting('mill.version')::integer, current_setting('mill.min_compatible_version')::integer)
    ON CONFLICT DO NOTHING;
GRANT SELECT ON mill.schema_version TO mill_worker, mill_producer;

CREATE TABLE IF NOT EXISTS mill.settings (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    statement_limit_bytes integer NOT NULL DEFAULT 16777216
        CHECK (statement_limit_bytes BETWEEN 1 AND 536870912),
    default_group text,
    max_crashes integer NOT NULL DEFAULT 5 CHECK (max_crashes BETWEEN 1 AND 100),
    reserved_capacity mill.reserved_capacity NOT NULL DEFAULT 'none',
    backlog_wait interval NOT NULL DEFAULT '5 minutes' CHECK (backlog_wait > '0'),
    slow_factor double precision NOT NULL DEFAULT 4 CHECK (slow_factor BETWEEN 1 AND 1000000),
    history_retention interval NOT NULL DEFAULT '30 days'
        CHECK (history_retention >= '1 day'),
    schedule_log_retention interval NOT NULL DEFAULT '30 days'
        CHECK (schedule_log_retention >= '1 day'),
    audit_retention interval NOT NULL DEFAULT '365 days'
        CHECK (audit_retention >= '1 day'),
    declaring_roles text[] NOT NULL DEFAULT '{}',
    hide_statements boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE mill.settings IS 'Settings of the whole fleet, one row. Change them with UPDATE mill.settings SET …';
COMMENT ON COLUMN mill.settings.statement_limit_bytes IS
    'Maximum size of a statement in bytes. Enqueue refuses longer statements';
COMMENT ON COLUMN mill.settings.history_retention IS
    'Age at which attempts are deleted, by dropping whole daily partitions';
COMMENT ON COLUMN mill.settings.schedule_log_retention IS
    'Age at which rows of mill.schedule_log are deleted, a few thousand at a time, and removed schedules without runs';
COMMENT ON COLUMN mill.settings.audit_retention IS
    'Age at which rows of mill.audit are deleted, a few ten thousand per hour';
COMMENT ON COLUMN mill.settings.declaring_roles IS
    'Roles whose procedures may declare schedules in their comments, in addition to superusers and members of '
    'mill_operator. The code of these procedures runs as the task login';
COMMENT ON COLUMN mill.settings.hide_statements IS
    'Whether mill_viewer is denied access to statements, parameters, results, notices and messages';
COMMENT ON COLUMN mill.settings.max_crashes IS
    'A task ends as lost when the worker of this many of its attempts has died, or the server has crashed this many '
    'times while no other task could be the cause';
COMMENT ON COLUMN mill.settings.reserved_capacity IS
    'Share of the fleet''s readers that run only tasks of priority reserved, see mill.set_reserved_capacity';
COMMENT ON COLUMN mill.settings.backlog_wait IS
    'Wait from which the oldest waiting task of a queue or of a limit is reported as a problem';
COMMENT ON COLUMN mill.settings.slow_factor IS
    'A task or run is slow if it has taken this many times its usual duration, see mill.slow_tasks and mill.slow_runs';
COMMENT ON COLUMN mill.settings.default_group IS
    'Group of new tasks that are given no group, see mill.set_default_group; null: none';
INSERT INTO mill.settings DEFAULT VALUES ON CONFLICT DO NOTHING;
GRANT SELECT ON mill.settings TO mill_worker, mill_producer;
GRANT UPDATE ON mill.settings TO mill_operator;

-- Operator functions insert their audit row themselves, in the transaction of the action. So an action
-- from psql is recorded like any other, and an action that is rolled back leaves no row.
CREATE TABLE IF NOT EXISTS mill.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    login text NOT NULL DEFAULT session_user,
    role text DEFAULT nullif(current_setting('role'), 'none'),
    actor text DEFAULT left(nullif(current_setting('mill.actor', true), ''), 200),
    application text DEFAULT nullif(current_setting('application_name'), ''),
    action text NOT NULL,
    subject text NOT NULL,
    detail jsonb
);
COMMENT ON TABLE mill.audit IS
    'One row per action of an operator, and per run that timed out. Rows are never updated. Workers delete rows older '
    'than settings.audit_retention';
COMMENT ON COLUMN mill.audit.login IS 'Login of the session, as authenticated by the database';
COMMENT ON COLUMN mill.audit.role IS 'Role that the session had assumed with SET ROLE; null if none';
COMMENT ON COLUMN mill.audit.actor IS
    'Person on whose behalf a program acts, from SET mill.actor. Claimed by the program and not verified';
COMMENT ON COLUMN mill.audit.action IS
    'Name of the function of schema mill that was called. For a direct change of mill.settings: update_settings';
COMMENT ON COLUMN mill.audit.detail IS
    'Arguments or effect of the action. A changed setting has its old and its new value: '
    '{"weight": {"old": 1, "new": 7}}';
COMMENT ON COLUMN mill.audit.subject IS 'Object of the action, such as task 42, queue etl, run 12 or schedule nightly';
-- For queries of the actions on one subject.
CREATE INDEX IF NOT EXISTS audit_subject ON mill.audit (subject, id);

CREATE OR REPLACE FUNCTION mill.record_audit(action text, subject text, detail jsonb DEFAULT NULL) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO mill.audit (action, subject, detail) VALUES (action, subject, nullif(detail, '{}'))
$$;
COMMENT ON FUNCTION mill.record_audit IS
    'Appends a row to mill.audit. Operator functions call it. No role may execute it directly, so audit rows cannot '
    'be forged';

CREATE OR REPLACE FUNCTION mill.record_change(action text, subject text, before jsonb, after jsonb) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.record_audit(action, subject, (SELECT jsonb_object_agg(n.key,
            CASE WHEN before IS NOT NULL AND n.value <> coalesce(before->n.key, 'null')
                THEN jsonb_build_object('old', before->n.key, 'new', n.value) ELSE n.value END)
        FROM jsonb_each(after) AS n))
$$;
COMMENT ON FUNCTION mill.record_change IS
    'Appends a row to mill.audit for these settings. A changed setting is recorded as {"old", "new"}, any other '
    'setting as its value. before null: the object is new';

CREATE OR REPLACE FUNCTION mill.audit_settings() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF new.default_group IS DISTINCT FROM old.default_group AND new.default_group IS NOT NULL THEN
        PERFORM mill.lock_group(new.default_group);
    END IF;
    -- The server cannot compute the time so long ago, so mill.prune would fail, and delete nothing any more.
    IF greatest(new.history_retention, new.schedule_log_retention, new.audit_retention) > '1000 years' THEN
        RAISE EXCEPTION 'a retention exceeds 1000 years' USING ERRCODE = '22023',
            HINT = 'To delete nothing, set ''1000 years''.';
    END IF;
    PERFORM mill.record_change('update_settings', 'settings', to_jsonb(old), (SELECT jsonb_object_agg(n.key, n.value)
        FROM jsonb_each(to_jsonb(new)) AS n WHERE n.value IS DISTINCT FROM to_jsonb(old)->n.key));
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mill.audit_settings IS
    'Trigger of mill.settings: records the changed settings, with their old and new values, in mill.audit. Raises an '
    'error if the default group does not exist, or a retention exceeds 1000 years';
CREATE OR REPLACE TRIGGER audit_settings AFTER UPDATE ON mill.settings
    FOR EACH ROW WHEN (old.* IS DISTINCT FROM new.*) EXECUTE FUNCTION mill.audit_settings();

CREATE TABLE IF NOT EXISTS mill.locks (
    name text PRIMARY KEY,
    holder uuid,
    held_until timestamptz
);
COMMENT ON TABLE mill.locks IS
    'One row per kind of work that only one session of the fleet may do at a time. Sessions lock the row, or hold it '
    'for a while. Everybody may take an advisory lock, and so keep the fleet from its work; nobody else may lock these '
    'rows';
COMMENT ON COLUMN mill.locks.holder IS 'Worker that holds the row';
INSERT INTO mill.locks (name)
    VALUES ('history'), ('conditions'), ('target epochs'), ('schedule sync'), ('fleet metrics') ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION mill.lock(name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM mill.locks l WHERE l.name = lock.name FOR UPDATE;
END
$$;
COMMENT ON FUNCTION mill.lock IS 'Locks a row of mill.locks until the end of the transaction';
GRANT EXECUTE ON FUNCTION mill.lock TO mill_worker, mill_operator;

CREATE OR REPLACE FUNCTION mill.hold_lock(name text, holder uuid, held_for interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A time in the far future is from before the clock was set back.
    UPDATE mill.locks l SET holder = hold_lock.holder, held_until = clock_timestamp() + held_for
        WHERE l.name = hold_lock.name AND (l.holder = hold_lock.holder OR l.holder IS NULL
            OR l.held_until NOT BETWEEN clock_timestamp() AND clock_timestamp() + interval '1 hour');
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION mill.hold_lock IS
    'Holds a row of mill.locks for a worker, at most for an hour. Returns false if another worker holds it';
GRANT EXECUTE ON FUNCTION mill.hold_lock TO mill_worker;

CREATE OR REPLACE FUNCTION mill.check_size(what text, document jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    limit_bytes CONSTANT integer := (SELECT s.statement_limit_bytes FROM mill.settings s);
BEGIN
    -- The length of the text counts, because that is sent to workers and clients. It can be a thousand times the
    -- length of what is stored, and exceed what the server can send.
    IF octet_length(document::text) > limit_bytes THEN
        RAISE EXCEPTION 'the % % bytes long; the maximum is % bytes', what, octet_length(document::text), limit_bytes
            USING ERRCODE = '54000',
                HINT = 'Store bulk data in a table, or raise statement_limit_bytes in mill.settings.';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_size IS
    'Raises an error if the text of a document is longer than settings.statement_limit_bytes. what: subject and verb '
    'of the message, such as "params are"';

CREATE OR REPLACE FUNCTION mill.sees_statements() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT s.hide_statements OR pg_has_role('mill_operator', 'USAGE') OR pg_has_role('mill_owner', 'USAGE')
    FROM mill.settings s
$$;
COMMENT ON FUNCTION mill.sees_statements IS
    'Returns whether the current user may read statements, parameters, results and messages';
GRANT EXECUTE ON FUNCTION mill.sees_statements TO mill_viewer, mill_worker;

CREATE OR REPLACE FUNCTION mill.caller_sees_statements() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT s.hide_statements OR pg_has_role(c.name, 'mill_operator', 'USAGE')
        OR pg_has_role(c.name, 'mill_owner', 'USAGE')
    FROM mill.settings s
        CROSS JOIN (SELECT coalesce(nullif(current_setting('role'), 'none'), session_user)::name AS name) AS c
$$;
COMMENT ON FUNCTION mill.caller_sees_statements IS
    'As mill.sees_statements, for functions with the rights of mill_owner, in which the current user is not the '
    'caller: asks for the role that the session has assumed, or else for its login';

-- schema/04_capacity.sql --------------------------------------------------------------------------

-- Capacity: priorities, queues, profiles, groups and limits.
--
-- The settings here, and the functions that change them, decide which task runs next, as which login,
-- and how many tasks run at once.
--
-- The limits of queues and concurrency keys are stored in mill.limits. The limit of a group is stored in mill.groups
-- and counts the tasks of each run separately, so mill.limits has one row for each run that uses the group. The view
-- mill.effective_limits combines both tables. A function that changes a limit also applies the change to existing
-- tasks, with mill.enforce_limits (14_permits.sql).

-- Priorities --------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.priorities (
    priority mill.priority PRIMARY KEY,
    -- NaN and infinity compare greater than all numbers, so the upper bound excludes them.
    weight double precision NOT NULL CHECK (weight >= 0 AND weight <= 1000000)
);
COMMENT ON TABLE mill.priorities IS
    'Weight of each priority. While all priorities have work, claims are distributed in proportion to the weights. A '
    'weight is a probability, not a rank: a lower priority is claimed less often, but is not held back';
COMMENT ON COLUMN mill.priorities.weight IS
    'Weight relative to the other priorities; 0: claimed only when no other priority has work';
INSERT INTO mill.priorities (priority, weight)
    VALUES ('low', 5), ('normal', 10), ('high', 15), ('critical', 30), ('reserved', 40)
    ON CONFLICT DO NOTHING;
GRANT SELECT ON mill.priorities TO mill_worker;

CREATE OR REPLACE FUNCTION mill.set_weights(low double precision DEFAULT NULL,
    normal double precision DEFAULT NULL, high double precision DEFAULT NULL,
    critical double precision DEFAULT NULL, reserved double precision DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before jsonb;
BEGIN
    PERFORM FROM mill.priorities p ORDER BY p.priority FOR UPDATE;
    before := (SELECT jsonb_object_agg(p.priority, p.weight) FROM mill.priorities p);
    UPDATE mill.priorities p SET weight = coalesce(w.weight, p.weight)
        FROM (VALUES ('low'::mill.priority, low), ('normal', normal), ('high', high),
            ('critical', critical), ('reserved', reserved)) AS w (priority, weight)
        WHERE p.priority = w.priority;
    IF NOT EXISTS (SELECT FROM mill.priorities p WHERE p.weight > 0) THEN
        RAISE EXCEPTION 'all weights are zero' USING ERRCODE = '22023',
            HINT = 'At least one weight must be greater than zero.';
    END IF;
    PERFORM mill.record_change('set_weights', 'priorities', before, jsonb_strip_nulls(jsonb_build_object('low', low,
        'normal', normal, 'high', high, 'critical', critical, 'reserved', reserved)));
END
$$;
COMMENT ON FUNCTION mill.set_weights IS
    'Changes the given weights: 0 to 1000000, not all of them 0. Workers apply the change within two seconds';
GRANT EXECUTE ON FUNCTION mill.set_weights TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_reserved_capacity(capacity mill.reserved_capacity) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE mill.settings SET reserved_capacity = capacity
$$;
COMMENT ON FUNCTION mill.set_reserved_capacity IS
    'Sets the share of the fleet''s readers that run only tasks of priority reserved. Workers apply the change with '
    'their next heartbeat';
GRANT EXECUTE ON FUNCTION mill.set_reserved_capacity TO mill_operator;

-- Queues ------------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.queues (
    name mill.queue_name PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false,
    held_back text,
    shared_commit interval CHECK (shared_commit BETWEEN '1 millisecond' AND '100 milliseconds'),
    store_params boolean NOT NULL DEFAULT true,
    store_output boolean NOT NULL DEFAULT true,
    max_replication_lag interval CHECK (max_replication_lag BETWEEN '5 seconds' AND '1 hour'),
    max_snapshot_age interval CHECK (max_snapshot_age >= '1 second'),
    max_active_sessions integer CHECK (max_active_sessions >= 0),
    changed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE mill.queues IS 'Settings of queues. A queue that has no row has the default settings';
COMMENT ON COLUMN mill.queues.paused IS 'Whether claims from the queue are stopped. Running tasks continue';
COMMENT ON COLUMN mill.queues.shared_commit IS
    'Time budget within which a reader runs short tasks of this queue in one shared transaction; null: each task '
    'commits alone';
COMMENT ON COLUMN mill.queues.store_params IS
    'Default of the option store_params of the tasks of the queue: whether params of finished tasks are stored';
COMMENT ON COLUMN mill.queues.store_output IS
    'Default of the option store_output: whether notices, results and plans of finished tasks are stored';
COMMENT ON COLUMN mill.queues.max_replication_lag IS
    'Workers claim only while no connected standby is further behind; null: no such condition';
COMMENT ON COLUMN mill.queues.max_snapshot_age IS
    'Workers claim only while no transaction has held its snapshot for longer; null: no such condition';
COMMENT ON COLUMN mill.queues.max_active_sessions IS
    'Workers claim only while at most this many sessions of the server are active; null: no such condition';
COMMENT ON COLUMN mill.queues.held_back IS
    'Which condition does not hold, so that workers claim nothing; null: every condition holds';
GRANT SELECT ON mill.queues TO mill_worker;

-- Profiles ----------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.profiles (
    name mill.profile_name PRIMARY KEY CHECK (name <> ''),
    description text,
    allowed text[] NOT NULL DEFAULT '{}',
    routines text[],
    key uuid NOT NULL UNIQUE DEFAULT gen_random_uuid()
);
COMMENT ON TABLE mill.profiles IS
    'Profiles: additional logins that tasks can run as. The connection settings of a profile are in the '
    'configuration of workers; this table has the roles that may use the profile';
COMMENT ON COLUMN mill.profiles.allowed IS 'Roles whose members may enqueue tasks that run as this profile';
COMMENT ON COLUMN mill.profiles.routines IS
    'Routines (schema.name) of which a task of the profile has to call one; null: a task may have any statement';
COMMENT ON COLUMN mill.profiles.key IS
    'Random secret of the keys by which a caller of mill.submit proves that it may use the profile. mill.submit cannot '
    'check this itself: a SECURITY DEFINER function cannot determine its caller';

-- A key names a role and proves that this role has been allowed to use the profile, in a session of the same login.
CREATE OR REPLACE FUNCTION mill.profile_key(secret uuid, role oid) RETURNS uuid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT encode(oidsend(profile_key.role) || substr(uuid_send(secret), 1, 2)
        || substr(sha256(uuid_send(secret) || oidsend(profile_key.role) || oidsend(r.oid)), 1, 10), 'hex')::uuid
    FROM pg_roles r WHERE r.rolname = session_user
$$;
COMMENT ON FUNCTION mill.profile_key IS
    'Returns the key of a profile for a role: the number of the role, two bytes by which mill.name_of_profile finds '
    'the secret, and a hash of the secret, the role and the login';
GRANT EXECUTE ON FUNCTION mill.profile_key TO mill_producer, mill_viewer;

-- current_user is the role that executes the query: in a SECURITY DEFINER function, the owner of the function.
CREATE OR REPLACE VIEW mill.my_profiles WITH (security_barrier) AS
SELECT p.name, p.description, mill.profile_key(p.key, u.oid) AS key
FROM mill.profiles p JOIN pg_roles u ON u.rolname = current_user
WHERE mill.may_act_as(u.oid, p.allowed);
COMMENT ON VIEW mill.my_profiles IS 'Profiles that the current user may use for tasks';
GRANT SELECT ON mill.my_profiles TO mill_producer;

CREATE OR REPLACE FUNCTION mill.profile(name text) RETURNS uuid
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_key uuid;
BEGIN
    SELECT p.key INTO found_key FROM mill.my_profiles p WHERE p.name::text = profile.name;
    IF found_key IS NULL THEN
        RAISE EXCEPTION 'role "%" may not use profile "%"', current_user, name USING ERRCODE = '42501',
            HINT = pg_catalog.format('A member of mill_owner can allow it: SELECT mill.set_profile(%L, allowed => '
                'ARRAY[%L])', name, current_user);
    END IF;
    RETURN found_key;
END
$$;
COMMENT ON FUNCTION mill.profile IS
    'Returns a key of a profile, for mill.submit and mill.submit_many in sessions of the same login, as long as the '
    'current user may use the profile. Raises an error if it may not';
GRANT EXECUTE ON FUNCTION mill.profile TO mill_producer;

CREATE OR REPLACE FUNCTION mill.name_of_profile(profile uuid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given CONSTANT bytea := uuid_send(profile);
    found_name text;
BEGIN
    -- The role in the key has to be allowed now: it may have lost the right since the key was made.
    SELECT p.name INTO found_name FROM mill.profiles p
        JOIN pg_roles u ON u.oid = ('x' || encode(substr(given, 1, 4), 'hex'))::bit(32)::bigint::oid
        WHERE substr(uuid_send(p.key), 1, 2) = substr(given, 5, 2) AND mill.profile_key(p.key, u.oid) = profile
            AND mill.may_act_as(u.oid, p.allowed);
    IF found_name IS NULL THEN
        RAISE EXCEPTION 'unknown profile key' USING ERRCODE = '42501', HINT = 'Pass profile => mill.profile(''name'').';
    END IF;
    RETURN found_name;
END
$$;
COMMENT ON FUNCTION mill.name_of_profile IS
    'Returns the name of the profile with this key, for mill.submit. Raises an error if the key is unknown or of '
    'another login, or if its role may no longer use the profile';

-- The functions that declare jobs are SECURITY DEFINER, so current_user is their owner here. The check
-- applies to the session user instead, or to the role assumed with SET ROLE.
CREATE OR REPLACE FUNCTION mill.check_profile(name text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller text := coalesce(nullif(current_setting('role'), 'none'), session_user);
BEGIN
    IF NOT EXISTS (SELECT FROM mill.profiles p JOIN pg_roles u ON u.rolname = caller
        WHERE p.name = check_profile.name AND mill.may_act_as(u.oid, p.allowed))
    THEN
        RAISE EXCEPTION 'role "%" may not use profile "%"', caller, name USING ERRCODE = '42501',
            HINT = format('A member of mill_owner can allow it: SELECT mill.set_profile(%L, allowed => ARRAY[%L])',
                name, caller);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_profile IS
    'Raises an error if the caller may not use this profile, for mill.set_job_task';

CREATE OR REPLACE FUNCTION mill.set_profile(name text, allowed text[] DEFAULT NULL,
    description text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    missing text;
    before jsonb;
BEGIN
    SELECT a.role INTO missing FROM unnest(set_profile.allowed) AS a(role)
        WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = a.role);
    IF FOUND THEN
        RAISE EXCEPTION 'there is no role "%"', missing USING ERRCODE = '22023';
    END IF;
    SELECT to_jsonb(p) INTO before FROM mill.profiles p WHERE p.name = set_profile.name FOR UPDATE;
    INSERT INTO mill.profiles AS p (name, allowed, description)
        VALUES (set_profile.name, coalesce(set_profile.allowed, '{}'), set_profile.description)
        ON CONFLICT (name) DO UPDATE SET allowed = coalesce(set_profile.allowed, p.allowed),
            description = coalesce(set_profile.description, p.description), key = gen_random_uuid();
    PERFORM mill.record_change('set_profile', 'profile ' || set_profile.name, before, jsonb_strip_nulls(
        jsonb_build_object('allowed', set_profile.allowed, 'description', set_profile.description)));
END
$$;
COMMENT ON FUNCTION mill.set_profile IS
    'Creates or changes a profile; allowed: roles whose members may use it. Null arguments leave settings unchanged. '
    'For mill_owner only';

CREATE OR REPLACE FUNCTION mill.use_of_profile(name text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT u.what FROM (
        SELECT 'task ' || t.id AS what FROM mill.tasks t WHERE t.run_as = use_of_profile.name
        UNION ALL
        SELECT format('task "%s" of job "%s"', t.name, t.job) FROM mill.job_tasks t
            WHERE t.run_as = use_of_profile.name AND t.disabled_at IS NULL
        UNION ALL
        SELECT format('task "%s" of run %s', t.name, r.id) FROM mill.runs r JOIN mill.run_tasks t ON t.run_id = r.id
            WHERE r.state = 'running' AND t.run_as = use_of_profile.name
        UNION ALL
        SELECT format('subscription "%s"', s.name) FROM mill.subscriptions s
            WHERE s.run_as = use_of_profile.name) AS u LIMIT 1);
END
$$;
COMMENT ON FUNCTION mill.use_of_profile IS
    'Returns a live task, a task of a job or of a run in progress, or a subscription that uses the profile, or null';

CREATE OR REPLACE FUNCTION mill.drop_profile(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    used CONSTANT text := mill.use_of_profile(name);
BEGIN
    IF used IS NOT NULL THEN
        RAISE EXCEPTION 'profile "%" is used by %', name, used USING ERRCODE = '55000',
            HINT = 'Wait for its tasks and runs or cancel them; change or disable its jobs; change its subscriptions.';
    END IF;
    DELETE FROM mill.profiles p WHERE p.name = drop_profile.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_audit('drop_profile', 'profile ' || name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.drop_profile IS
    'Removes a profile that no live task, job, run in progress or subscription uses. Returns whether it existed. For '
    'mill_owner only';

-- Groups and limits -------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.groups (
    name mill.label PRIMARY KEY,
    description text,
    priority mill.priority,
    max_running integer CONSTRAINT group_max_running_range CHECK (max_running >= 0),
    opens time,
    closes time,
    zone text,
    requires_permit boolean NOT NULL GENERATED ALWAYS AS (max_running IS NOT NULL OR opens IS NOT NULL) STORED,
    CONSTRAINT period_whole CHECK (num_nonnulls(opens, closes, zone) IN (0, 3)),
    CONSTRAINT period_has_length CHECK (opens <> closes)
);
COMMENT ON TABLE mill.groups IS
    'Groups of tasks that share a default priority, a concurrency limit within each run, and an active period';
COMMENT ON COLUMN mill.groups.priority IS
    'Default priority of the tasks of the group. A priority of the task overrides it';
COMMENT ON COLUMN mill.groups.max_running IS
    'Maximum number of tasks of the group that run at once in one run. null: no limit. 0: no task starts, running '
    'tasks finish. All tasks outside of runs count together, as one run';
COMMENT ON COLUMN mill.groups.requires_permit IS 'Whether tasks of the group need a permit';
COMMENT ON COLUMN mill.groups.opens IS
    'Time of day, in zone, from which tasks may start. If closes is earlier, the period extends past midnight';
GRANT SELECT ON mill.groups TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.limits (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind mill.limit_kind NOT NULL,
    name mill.label NOT NULL,
    run_id bigint NOT NULL DEFAULT 0,
    max_running integer CONSTRAINT max_running_range CHECK (max_running >= 0),
    rate_starts integer CONSTRAINT rate_starts_range CHECK (rate_starts BETWEEN 1 AND 1000000),
    rate_period interval
        CONSTRAINT rate_period_range CHECK (rate_period BETWEEN '1 second' AND '365 days'),
    window_starts integer,
    window_length interval,
    requires_permit boolean NOT NULL
        GENERATED ALWAYS AS (max_running IS NOT NULL OR rate_starts IS NOT NULL) STORED,
    explicit boolean NOT NULL DEFAULT false,
    CONSTRAINT rate_whole
        CHECK (num_nonnulls(rate_starts, rate_period, window_starts, window_length) IN (0, 4)),
    UNIQUE (kind, name, run_id)
);
COMMENT ON TABLE mill.limits IS
    'Limits on tasks of a queue, of a concurrency key, or of a group within one run. A task with a limit is blocked '
    'until it has a permit';
COMMENT ON COLUMN mill.limits.run_id IS 'Groups only: the run; 0 for tasks outside any run';
COMMENT ON COLUMN mill.limits.max_running IS
    'Keys and queues: maximum number of running tasks. null: no limit. 0: no task starts. For groups see mill.groups';
COMMENT ON COLUMN mill.limits.requires_permit IS
    'Keys and queues: whether max_running or a rate is set, so that new tasks need a permit';
COMMENT ON COLUMN mill.limits.explicit IS 'Whether mill.set_max_running has set it, so that mill.prune keeps it';
COMMENT ON COLUMN mill.limits.rate_starts IS 'Maximum number of starts in any rate_period';
COMMENT ON COLUMN mill.limits.window_starts IS
    'Maximum number of starts in any window_length. This expresses the same rate as rate_starts per rate_period, for '
    'the shortest window that enforces the rate exactly';
GRANT SELECT ON mill.limits TO mill_worker;

CREATE OR REPLACE FUNCTION mill.resolve_local_time(at_local timestamp, zone text) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        -- The usual case: the clock does not change at this time or in the three hours before it.
        WHEN i.later AT TIME ZONE zone = at_local
            AND (i.later - interval '3 hours') AT TIME ZONE zone = at_local - interval '3 hours'
        THEN i.later
        ELSE (SELECT min(m) FROM generate_series(i.later - interval '3 hours', i.later, interval '1 minute') AS m
            WHERE m AT TIME ZONE zone >= at_local)
    END
    FROM (SELECT at_local AT TIME ZONE zone AS later) AS i
$$;
COMMENT ON FUNCTION mill.resolve_local_time IS
    'Returns the first instant at which the clocks of a zone show this time or a later one. If the time falls into '
    'the gap when clocks are put forward, this is the end of the gap. If the time occurs twice because clocks are put '
    'back, this is the first occurrence';
GRANT EXECUTE ON FUNCTION mill.resolve_local_time TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.active_period(opens time, closes time, zone text, at timestamptz,
    OUT open boolean, OUT until timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(bool_or(at >= p.begins AND at < p.ends), opens IS NULL),
        coalesce(max(p.ends) FILTER (WHERE at >= p.begins AND at < p.ends),
            min(p.begins) FILTER (WHERE p.begins > at))
    -- On a day on which clocks skip the whole period, it begins and ends at the same instant.
    FROM (SELECT mill.resolve_local_time(d.day + opens, zone) AS begins, mill.resolve_local_time(
            d.day + closes + CASE WHEN closes < opens THEN interval '1 day' ELSE '0' END, zone) AS ends
        FROM generate_series(-1, 2) AS n
            CROSS JOIN LATERAL (SELECT (at AT TIME ZONE zone)::date + n AS day) AS d
        WHERE opens IS NOT NULL) AS p
    WHERE p.begins < p.ends
$$;
COMMENT ON FUNCTION mill.active_period IS
    'Returns whether a daily period is open at an instant, and the time of the next change. Without a period, open is '
    'true and until is null';
GRANT EXECUTE ON FUNCTION mill.active_period TO mill_worker, mill_viewer;

CREATE OR REPLACE VIEW mill.effective_limits AS
    SELECT l.id, l.kind, l.name, l.run_id,
        terms.max_running, coalesce(terms.max_running = 0, false) AS paused,
        l.rate_starts, l.rate_period, l.window_starts, l.window_length, g.opens, g.closes, g.zone
    FROM mill.limits l LEFT JOIN mill.groups g ON l.kind = 'group' AND g.name = l.name
        CROSS JOIN LATERAL (SELECT CASE WHEN l.kind = 'group' THEN g.max_running ELSE l.max_running END)
            AS terms (max_running);
COMMENT ON VIEW mill.effective_limits IS 'Each limit with its current values. max_running null: no limit; 0: paused';

CREATE OR REPLACE FUNCTION mill.set_max_running(kind mill.limit_kind, name text, max_running integer)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before jsonb;
    after jsonb := jsonb_build_object('max_running', max_running);
    changed bigint;
BEGIN
    IF set_max_running.kind = 'group' THEN
        SELECT to_jsonb(g) INTO before FROM mill.groups g WHERE g.name = set_max_running.name FOR NO KEY UPDATE;
        UPDATE mill.groups g SET max_running = set_max_running.max_running WHERE g.name = set_max_running.name;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no group "%"', name USING ERRCODE = '22023';
        END IF;
        PERFORM mill.record_change('set_max_running', 'group ' || name, before, after);
        PERFORM mill.enforce_limits(ARRAY(SELECT l.id FROM mill.limits l
            WHERE l.kind = 'group' AND l.name = set_max_running.name), NULL, name);
        RETURN;
    END IF;
    SELECT to_jsonb(l) INTO before FROM mill.limits l
        WHERE (l.kind, l.name, l.run_id) = (set_max_running.kind, set_max_running.name, 0) FOR NO KEY UPDATE;
    INSERT INTO mill.limits AS l (kind, name, max_running, explicit)
        VALUES (set_max_running.kind, set_max_running.name, set_max_running.max_running, true)
        ON CONFLICT ON CONSTRAINT limits_kind_name_run_id_key
            DO UPDATE SET max_running = excluded.max_running, explicit = true
        RETURNING l.id INTO changed;
    PERFORM mill.record_change('set_max_running', kind || ' ' || name, coalesce(before, '{}'), after);
    PERFORM mill.enforce_limits(ARRAY[changed], CASE kind WHEN 'queue' THEN name END, NULL);
END
$$;
COMMENT ON FUNCTION mill.set_max_running IS
    'Sets the maximum number of running tasks of a queue, of a concurrency key or of each run of a group. null: no '
    'limit. 0: no task starts. Tasks that are already running finish';
GRANT EXECUTE ON FUNCTION mill.set_max_running TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_rate(kind mill.limit_kind, name text, starts integer, period interval)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    seconds numeric := extract(epoch FROM period);
    divisor integer;
    before jsonb;
    changed bigint;
BEGIN
    IF set_rate.kind = 'group' THEN
        RAISE EXCEPTION 'a group cannot have a rate' USING ERRCODE = '22023',
            HINT = 'Set the rate on a queue or a concurrency key.';
    ELSIF num_nonnulls(starts, period) = 1 THEN
        RAISE EXCEPTION 'a rate requires both a number of starts and a period' USING ERRCODE = '22023';
    END IF;
    -- A window that divides the period evenly enforces the rate as exactly as the period, and spreads the starts more
    -- evenly. This query picks the shortest such window that lasts at least one second and allows at least one start.
    SELECT max(d) INTO divisor FROM generate_series(1, least(starts, 1000000)) AS d
        WHERE starts % d = 0 AND d <= greatest(1, floor(starts / seconds));
    SELECT jsonb_build_object('starts', l.rate_starts, 'period', l.rate_period) INTO before FROM mill.limits l
        WHERE (l.kind, l.name, l.run_id) = (set_rate.kind, set_rate.name, 0) FOR NO KEY UPDATE;
    -- A key without a row allows one task at once, so its new row does, too.
    INSERT INTO mill.limits AS l (kind, name, max_running, rate_starts, rate_period, window_starts, window_length)
        VALUES (set_rate.kind, set_rate.name, CASE set_rate.kind WHEN 'key' THEN 1 END, starts, period, divisor,
            period * divisor / starts)
        ON CONFLICT ON CONSTRAINT limits_kind_name_run_id_key DO UPDATE
            SET rate_starts = excluded.rate_starts, rate_period = excluded.rate_period,
                window_starts = excluded.window_starts, window_length = excluded.window_length
        RETURNING l.id INTO changed;
    PERFORM mill.record_change('set_rate', kind || ' ' || name, coalesce(before, '{}'),
        jsonb_build_object('starts', starts, 'period', period));
    PERFORM mill.enforce_limits(ARRAY[changed], CASE kind WHEN 'queue' THEN name END, NULL);
END
$$;
COMMENT ON FUNCTION mill.set_rate IS
    'Sets a rate: the maximum number of tasks of a queue or a concurrency key that start within any time span of this '
    'length. null, null: no rate';
GRANT EXECUTE ON FUNCTION mill.set_rate TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_group(name text, description text DEFAULT NULL,
    priority mill.priority DEFAULT NULL, max_running integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    before jsonb;
BEGIN
    SELECT to_jsonb(g) INTO before FROM mill.groups g WHERE g.name = set_group.name FOR NO KEY UPDATE;
    INSERT INTO mill.groups AS g (name, description, priority, max_running)
        VALUES (name, description, priority, max_running)
        ON CONFLICT ON CONSTRAINT groups_pkey DO UPDATE
            SET description = coalesce(excluded.description, g.description),
                priority = coalesce(excluded.priority, g.priority),
                max_running = coalesce(set_group.max_running, g.max_running);
    PERFORM mill.record_change('set_group', 'group ' || name, before, jsonb_strip_nulls(jsonb_build_object(
        'description', description, 'priority', priority, 'max_running', max_running)));
    PERFORM mill.enforce_limits(ARRAY(SELECT l.id FROM mill.limits l
        WHERE l.kind = 'group' AND l.name = set_group.name), NULL, name);
END
$$;
COMMENT ON FUNCTION mill.set_group IS
    'Creates a group, or changes the given settings of an existing one. mill.set_max_running(''group'', name, null) '
    'removes its limit';
GRANT EXECUTE ON FUNCTION mill.set_group TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_active_period(group_name text, opens time, closes time,
    zone text DEFAULT 'UTC') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before jsonb;
BEGIN
    IF opens = closes THEN
        RAISE EXCEPTION 'the active period is empty' USING ERRCODE = '22023',
            HINT = 'Pass null, null to let tasks of the group start at any time.';
    END IF;
    PERFORM now() AT TIME ZONE set_active_period.zone;
    SELECT to_jsonb(g) INTO before FROM mill.groups g WHERE g.name = set_active_period.group_name FOR NO KEY UPDATE;
    UPDATE mill.groups g SET opens = set_active_period.opens, closes = set_active_period.closes,
        zone = CASE WHEN set_active_period.opens IS NOT NULL THEN set_active_period.zone END
        WHERE g.name = set_active_period.group_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no group "%"', group_name USING ERRCODE = '22023';
    END IF;
    PERFORM mill.record_change('set_active_period', 'group ' || group_name, before,
        jsonb_build_object('opens', opens, 'closes', closes, 'zone', CASE WHEN opens IS NOT NULL THEN zone END));
    PERFORM mill.enforce_limits(ARRAY(SELECT l.id FROM mill.limits l
        WHERE l.kind = 'group' AND l.name = set_active_period.group_name), NULL, group_name);
END
$$;
COMMENT ON FUNCTION mill.set_active_period IS
    'Sets the times of day, in a zone, between which tasks of a group may start. If closes is earlier than opens, the '
    'period extends past midnight. null, null: at any time';
GRANT EXECUTE ON FUNCTION mill.set_active_period TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_default_group(name text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE mill.settings SET default_group = name
$$;
COMMENT ON FUNCTION mill.set_default_group IS
    'Sets the group of new tasks, and of tasks of new runs, that are given no group; null: none';
GRANT EXECUTE ON FUNCTION mill.set_default_group TO mill_operator;

CREATE OR REPLACE FUNCTION mill.require_read_committed(action text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION '% requires the isolation level READ COMMITTED, not %', action,
            upper(current_setting('transaction_isolation')) USING ERRCODE = '25001',
            HINT = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.require_read_committed IS
    'For functions that lock a row and then look for tasks that use it: raises an error in isolation levels whose '
    'snapshot can be older than the lock, and would not show these tasks';

CREATE OR REPLACE FUNCTION mill.drop_group(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.require_read_committed('mill.drop_group');
    PERFORM FROM mill.groups g WHERE g.name = drop_group.name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF EXISTS (SELECT FROM mill.settings s WHERE s.default_group = drop_group.name) THEN
        RAISE EXCEPTION 'group "%" is the default group', name USING ERRCODE = '55000',
            HINT = 'Set another one first, or none with pgmill group default off.';
    ELSIF EXISTS (SELECT FROM mill.tasks t WHERE t.group_name = drop_group.name) THEN
        RAISE EXCEPTION 'group "%" has live tasks', name USING ERRCODE = '23503',
            HINT = 'Cancel them or wait until they finish; --max-running 0 prevents them from starting.';
    END IF;
    IF EXISTS (SELECT FROM mill.job_tasks t WHERE t.group_name = drop_group.name AND t.disabled_at IS NULL)
        OR EXISTS (SELECT FROM mill.runs r JOIN mill.run_tasks t ON t.run_id = r.id
            WHERE r.state = 'running' AND t.group_name = drop_group.name)
    THEN
        RAISE EXCEPTION 'group "%" is used by tasks of jobs or runs', name USING ERRCODE = '23503',
            HINT = 'Remove the group from the jobs, and wait until the runs finish.';
    END IF;
    DELETE FROM mill.limits l WHERE l.kind = 'group' AND l.name = drop_group.name;
    DELETE FROM mill.groups g WHERE g.name = drop_group.name;
    PERFORM mill.record_audit('drop_group', 'group ' || name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.drop_group IS
    'Removes a group that has no live tasks. Returns false if it does not exist. Requires READ COMMITTED';
GRANT EXECUTE ON FUNCTION mill.drop_group TO mill_operator;

-- schema/05_maintenance.sql -----------------------------------------------------------------------

-- Maintenance windows: periods in which the whole fleet is paused.
--
-- A window begins at once or at a planned time, and ends at a given time or when an operator resumes
-- the fleet.
--
-- Each claim reads this table, so a pause takes effect with its commit. Workers need not be told: a claim that starts
-- afterwards returns no task, and the first poll after the end of the window finds the waiting tasks.

CREATE TABLE IF NOT EXISTS mill.maintenance_windows (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    starts_at timestamptz NOT NULL,
    ends_at timestamptz NOT NULL DEFAULT 'infinity',
    reason text CONSTRAINT reason_length CHECK (length(reason) <= 1000),
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT session_user
);
COMMENT ON TABLE mill.maintenance_windows IS
    'Periods in which the fleet is paused, in force or planned. mill.pause_fleet removes windows that have ended; '
    'mill.audit keeps a record';
COMMENT ON COLUMN mill.maintenance_windows.ends_at IS 'infinity: until mill.resume_fleet is called';
-- Used by every claim. Its session disables sequential scans, and without this index each claim would seem so expensive
-- that the server compiles its plan.
CREATE INDEX IF NOT EXISTS maintenance_windows_end ON mill.maintenance_windows (ends_at);
GRANT SELECT ON mill.maintenance_windows TO mill_worker;

CREATE OR REPLACE FUNCTION mill.fleet_paused() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    -- now() is the start of the transaction, which may be before that of a pause whose commit is visible here. A pause
    -- that began at once is in force even if the clock was set back since.
    SELECT EXISTS (SELECT FROM mill.maintenance_windows w
        WHERE w.ends_at > now() AND w.starts_at <= greatest(clock_timestamp(), w.created_at))
$$;
COMMENT ON FUNCTION mill.fleet_paused IS 'Returns whether a maintenance window is in force';
GRANT EXECUTE ON FUNCTION mill.fleet_paused TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.describe_fleet_pause() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('the fleet is paused%s%s', ' until ' || date_trunc('second', nullif(w.ends_at, 'infinity')),
        ': ' || w.reason)
    FROM mill.maintenance_windows w WHERE w.ends_at > now() AND w.starts_at <= greatest(clock_timestamp(), w.created_at)
    ORDER BY w.ends_at DESC, w.id DESC LIMIT 1
$$;
COMMENT ON FUNCTION mill.describe_fleet_pause IS
    'Returns until when and why the fleet is paused, for mill.why and the console; null if the fleet is not paused';
GRANT EXECUTE ON FUNCTION mill.describe_fleet_pause TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.pause_fleet(until timestamptz DEFAULT NULL, reason text DEFAULT NULL,
    starts_at timestamptz DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    planned CONSTANT boolean := starts_at > now();
    window_start CONSTANT timestamptz := greatest(starts_at, now());
    window_end CONSTANT timestamptz := coalesce(until, 'infinity');
    window_id bigint;
BEGIN
    IF window_end <= window_start THEN
        RAISE EXCEPTION 'the pause would end at %, which is not after its start at %', window_end, window_start
            USING ERRCODE = '22023', HINT = 'Give an end in the future, or none: mill.resume_fleet() ends the pause.';
    END IF;
    DELETE FROM mill.maintenance_windows w WHERE w.ends_at <= now();
    -- A pause that begins now replaces the one in force, so that its end can be moved.
    IF planned IS NOT TRUE THEN
        DELETE FROM mill.maintenance_windows w WHERE w.starts_at <= greatest(clock_timestamp(), w.created_at);
    END IF;
    INSERT INTO mill.maintenance_windows (starts_at, ends_at, reason)
        VALUES (window_start, window_end, nullif(btrim(reason), ''))
        RETURNING id INTO window_id;
    PERFORM mill.record_audit('pause_fleet', 'fleet', jsonb_strip_nulls(jsonb_build_object('until', until,
        'reason', nullif(btrim(reason), ''), 'starts_at', CASE WHEN planned THEN starts_at END)));
    RETURN window_id;
END
$$;
COMMENT ON FUNCTION mill.pause_fleet IS
    'Pauses the fleet: no task is claimed and no schedule fires; running tasks finish. until: end of the pause; null: '
    'until mill.resume_fleet is called. starts_at: plans a pause that begins then; null: begins now and replaces the '
    'pause in force. Returns the id of the maintenance window';
GRANT EXECUTE ON FUNCTION mill.pause_fleet TO mill_operator;

CREATE OR REPLACE FUNCTION mill.resume_fleet(planned boolean DEFAULT false) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended integer;
BEGIN
    DELETE FROM mill.maintenance_windows w
        WHERE w.ends_at > now() AND (planned OR w.starts_at <= greatest(clock_timestamp(), w.created_at));
    GET DIAGNOSTICS ended = ROW_COUNT;
    IF ended > 0 THEN
        PERFORM mill.record_audit('resume_fleet', 'fleet', jsonb_build_object('windows', ended, 'planned', planned));
        PERFORM pg_notify('mill', 'sweep');
    END IF;
    RETURN ended;
END
$$;
COMMENT ON FUNCTION mill.resume_fleet IS
    'Ends the pause of the fleet. planned: also removes planned maintenance windows. Returns the number of windows '
    'that were ended or removed';
GRANT EXECUTE ON FUNCTION mill.resume_fleet TO mill_operator;

-- schema/06_queue_conditions.sql ------------------------------------------------------------------

-- Conditions of queues: workers claim nothing while one does not hold.
--
-- Workers do not evaluate the conditions when they claim. About once a second, the poll of one worker calls
-- mill.check_queue_conditions, which stores in mill.queues.held_back what the claim reads, as it reads
-- mill.queues.paused.
--
-- The server does not report how old the last replayed record of a standby is while the replay makes no progress. So
-- each check stores the current position in the WAL. The lag of a standby is the age of the oldest stored
-- position that it has not replayed.

CREATE UNLOGGED TABLE IF NOT EXISTS mill.wal_positions (
    written_at timestamptz PRIMARY KEY,
    lsn pg_lsn NOT NULL
);
COMMENT ON TABLE mill.wal_positions IS
    'Positions in the WAL with their times, about one per second while a queue has conditions, for '
    'mill.replication_lags';
GRANT SELECT ON mill.wal_positions TO mill_worker;

CREATE OR REPLACE FUNCTION mill.conditions_due() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM mill.queues q
            WHERE num_nonnulls(q.max_replication_lag, q.max_snapshot_age, q.max_active_sessions, q.held_back) > 0)
        -- A time in the future shows that the clock was set back.
        AND NOT EXISTS (SELECT FROM mill.wal_positions p
            WHERE p.written_at > now() - interval '1 second' AND p.written_at <= clock_timestamp())
$$;
COMMENT ON FUNCTION mill.conditions_due IS
    'Returns whether a queue has conditions, and the last check of all conditions is at least a second old';
GRANT EXECUTE ON FUNCTION mill.conditions_due TO mill_worker;

CREATE OR REPLACE FUNCTION mill.record_wal_position() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ahead CONSTANT interval := (SELECT max(p.written_at) FROM mill.wal_positions p) - clock_timestamp();
BEGIN
    IF ahead > '0' THEN
        -- The clock was set back. The positions keep their distances in time, so that a standby that lags still lags.
        WITH moved AS (DELETE FROM mill.wal_positions p RETURNING p.written_at, p.lsn)
        INSERT INTO mill.wal_positions (written_at, lsn) SELECT m.written_at - ahead, m.lsn FROM moved m
            ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO mill.wal_positions (written_at, lsn) VALUES (clock_timestamp(), pg_current_wal_flush_lsn())
        ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION mill.record_wal_position IS
    'Stores the current position in the WAL. If the clock was set back, moves the times of the other positions with it';

CREATE OR REPLACE FUNCTION mill.replication_lags() RETURNS TABLE (standby text, lag interval)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.application_name, coalesce(clock_timestamp() - (SELECT min(p.written_at) FROM mill.wal_positions p
        WHERE p.lsn > r.replay_lsn), '0')
    FROM pg_stat_replication r WHERE r.replay_lsn IS NOT NULL AND r.state IN ('catchup', 'streaming')
$$;
COMMENT ON FUNCTION mill.replication_lags IS
    'Connected standbys, and how long ago the primary wrote what a standby has not replayed, for mill.hold_reason';
GRANT EXECUTE ON FUNCTION mill.replication_lags TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.hold_reason(max_replication_lag interval, max_snapshot_age interval,
    max_active_sessions integer) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    worst record;
    sessions bigint;
BEGIN
    IF max_replication_lag IS NOT NULL THEN
        SELECT l.standby, l.lag INTO worst FROM mill.replication_lags() l
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
COMMENT ON FUNCTION mill.hold_reason IS
    'Returns why a queue with these conditions is held back at this moment; null: all of its conditions hold';

CREATE OR REPLACE FUNCTION mill.check_queue_conditions() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended integer;
BEGIN
    -- Another worker checks at the same time.
    PERFORM FROM mill.locks l WHERE l.name = 'conditions' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    PERFORM mill.record_wal_position();
    DELETE FROM mill.wal_positions p WHERE p.written_at < now() - interval '1 minute'
        - (SELECT coalesce(max(q.max_replication_lag), '0') FROM mill.queues q);
    WITH checked AS MATERIALIZED (
        SELECT q.name, q.held_back IS NOT NULL AS was_held,
            mill.hold_reason(q.max_replication_lag, q.max_snapshot_age, q.max_active_sessions) AS reason
        FROM mill.queues q
        WHERE num_nonnulls(q.max_replication_lag, q.max_snapshot_age, q.max_active_sessions, q.held_back) > 0
        ORDER BY q.name FOR NO KEY UPDATE OF q SKIP LOCKED
    ), changed AS (
        UPDATE mill.queues q SET held_back = c.reason FROM checked c
        WHERE q.name = c.name AND q.held_back IS DISTINCT FROM c.reason
    )
    SELECT count(*) INTO ended FROM checked c WHERE c.was_held AND c.reason IS NULL;
    IF ended > 0 THEN
        PERFORM pg_notify('mill', 'sweep');
    END IF;
    RETURN ended;
END
$$;
COMMENT ON FUNCTION mill.check_queue_conditions IS
    'Evaluates the conditions of all queues, and stores which queues are held back. Returns the number of queues that '
    'are no longer held back';
GRANT EXECUTE ON FUNCTION mill.check_queue_conditions TO mill_worker;

CREATE OR REPLACE FUNCTION mill.set_queue_conditions(queue text, max_replication_lag interval DEFAULT NULL,
    max_snapshot_age interval DEFAULT NULL, max_active_sessions integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    before jsonb;
    reason text := mill.hold_reason(max_replication_lag, max_snapshot_age, max_active_sessions);
BEGIN
    SELECT jsonb_build_object('max_replication_lag', q.max_replication_lag, 'max_snapshot_age', q.max_snapshot_age,
        'max_active_sessions', q.max_active_sessions) INTO before FROM mill.queues q
        WHERE q.name = queue FOR NO KEY UPDATE;
    INSERT INTO mill.queues AS q (name, max_replication_lag, max_snapshot_age, max_active_sessions, held_back)
        VALUES (queue, max_replication_lag, max_snapshot_age, max_active_sessions, reason)
        ON CONFLICT (name) DO UPDATE SET max_replication_lag = excluded.max_replication_lag,
            max_snapshot_age = excluded.max_snapshot_age, max_active_sessions = excluded.max_active_sessions,
            held_back = excluded.held_back, changed_at = now();
    PERFORM mill.record_change('set_queue_conditions', 'queue ' || queue, before, jsonb_build_object(
        'max_replication_lag', max_replication_lag, 'max_snapshot_age', max_snapshot_age,
        'max_active_sessions', max_active_sessions));
    PERFORM pg_notify('mill', 'sweep');
END
$$;
COMMENT ON FUNCTION mill.set_queue_conditions IS
    'Sets the conditions under which workers claim from a queue; null: no such condition. While a condition does not '
    'hold, the queue is held back, as if it were paused. Workers check the conditions about once a second';
GRANT EXECUTE ON FUNCTION mill.set_queue_conditions TO mill_operator;

-- schema/07_routines.sql --------------------------------------------------------------------------

-- Routines of profiles: a profile restricted to calls of allowed routines.
--
-- The check is a list of accepted forms, not a search for forbidden ones: the statement has to match one
-- regular expression as a whole, which covers no comment, no operator, no nested call and no second
-- statement. The login of the profile remains the boundary of what a task can do.

CREATE OR REPLACE FUNCTION mill.called_routine(statement text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    space CONSTANT text := $re$[ \t\n\r\f]*$re$;
    -- The server folds and truncates other identifiers by rules that depend on its settings.
    word CONSTANT text := $re$[A-Za-z_][A-Za-z0-9_$]*$re$;
    identifier CONSTANT text := '((?:' || word || $re$)|"(?:[^"]|"")+")$re$;
    -- A constant with a backslash is refused, because its meaning depends on standard_conforming_strings.
    constant_value CONSTANT text := $re$(?:\$[0-9]+|'(?:[^'\\]|'')*'|[-+]?[0-9]+(?:\.[0-9]+)?|true|false|null)$re$;
    type CONSTANT text := '(?:text|varchar|bool|boolean|smallint|int|integer|bigint|int2|int4|int8|numeric|decimal|real'
        '|float4|float8|date|time|timestamp|timestamptz|interval|uuid|json|jsonb|bytea)(?:[[][]])?';
    argument CONSTANT text := '(?:' || word || space || '(?:=>|:=)' || space || ')?' || constant_value
        || '(?:' || space || '::' || space || type || ')?';
    parts text[];
BEGIN
    IF octet_length(statement) > 100000 THEN
        RETURN NULL;
    END IF;
    parts := regexp_match(statement, '(?i)^' || space || $re$(?:call|select)[ \t\n\r\f]+$re$ || identifier || space
        || '[.]' || space || identifier || space || '[(]' || space
        || '(?:' || argument || '(?:' || space || ',' || space || argument || ')*)?' || space || '[)]'
        || space || ';?' || space || '$');
    IF parts IS NULL THEN
        RETURN NULL;
    END IF;
    parts := parse_ident(parts[1] || '.' || parts[2]);
    RETURN format('%I.%I', parts[1], parts[2]);
END
$function$;
COMMENT ON FUNCTION mill.called_routine IS
    'Returns the name schema.routine if the statement is exactly one CALL or SELECT of this routine, whose arguments '
    'are constants, parameters such as $1 and casts of these to built-in types; otherwise null';

CREATE OR REPLACE FUNCTION mill.check_routine(profile text, statement text, task text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    allowed text[];
BEGIN
    SELECT p.routines INTO allowed FROM mill.profiles p WHERE p.name = check_routine.profile;
    IF allowed IS NULL OR mill.called_routine(statement) = ANY (allowed) THEN
        RETURN;
    END IF;
    RAISE EXCEPTION '%profile "%" allows only calls of %',
        CASE WHEN task <> '' THEN format('task "%s": ', task) ELSE '' END, profile,
        array_to_string(allowed, ', ') USING ERRCODE = '22023',
        HINT = 'The statement has to be one CALL schema.routine(…) or SELECT schema.routine(…), with constants and '
            'parameters such as $1 as arguments.';
END
$$;
COMMENT ON FUNCTION mill.check_routine IS
    'Raises an error if the profile is restricted to routines and the statement is not a call of one of them';

CREATE OR REPLACE FUNCTION mill.set_profile_routines(name text, routines text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted text[];
    missing text;
BEGIN
    SELECT array_agg(format('%I.%I', r.parts[1], r.parts[2]) ORDER BY r.place) INTO wanted
        FROM (SELECT parse_ident(g.routine) AS parts, g.place
            FROM unnest(set_profile_routines.routines) WITH ORDINALITY AS g(routine, place)) AS r;
    SELECT g.routine INTO missing FROM unnest(set_profile_routines.routines) AS g(routine)
        WHERE NOT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
            WHERE ARRAY[n.nspname::text, p.proname::text] = parse_ident(g.routine)) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'there is no routine "%"', missing USING ERRCODE = '22023',
            HINT = 'Give the name with its schema and without arguments, such as app.load.';
    END IF;
    UPDATE mill.profiles p SET routines = wanted WHERE p.name = set_profile_routines.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no profile "%"', name USING ERRCODE = '22023';
    END IF;
    PERFORM mill.record_audit('set_profile_routines', 'profile ' || name, jsonb_build_object('routines', wanted));
END
$$;
COMMENT ON FUNCTION mill.set_profile_routines IS
    'Restricts a profile to tasks that call one of these routines, given as schema.routine; null: any statement. '
    'Applies to later enqueues, retries and runs. For mill_owner only';

-- schema/08_targets.sql ---------------------------------------------------------------------------

-- Targets: other databases in which tasks run.
--
-- A target is a profile whose login connects to another database than the queue's. In that database,
-- the schema mill_target (crates/queue/src/receipt/schema.sql) holds a receipt of each task that has
-- succeeded there.
--
-- Effects and receipt commit together in the target. The queue records the end of the task afterwards. If it
-- is unknown whether an attempt has committed, a worker resolves the attempt: it writes a higher epoch into the
-- row of the receipt. The lock of this row decides. Either the receipt exists, or the attempt can no longer
-- commit.

CREATE TABLE IF NOT EXISTS mill.targets (
    name mill.profile_name PRIMARY KEY REFERENCES mill.profiles ON DELETE CASCADE,
    receipts_kept interval NOT NULL DEFAULT '7 days' CHECK (receipts_kept BETWEEN '1 hour' AND '10 years'),
    epoch bigint NOT NULL DEFAULT 0,
    checked_at timestamptz,
    restored_at timestamptz,
    restored_from bigint,
    max_replication_lag interval CHECK (max_replication_lag BETWEEN '5 seconds' AND '1 hour'),
    max_snapshot_age interval CHECK (max_snapshot_age >= '1 second'),
    max_active_sessions integer CHECK (max_active_sessions >= 0)
);
COMMENT ON TABLE mill.targets IS
    'Targets: profiles whose tasks run in another database. The connection settings are in the configuration of '
    'workers';
COMMENT ON COLUMN mill.targets.receipts_kept IS
    'Workers delete receipts that are older. A queue that is restored to an earlier time could run tasks again whose '
    'receipts are deleted';
COMMENT ON COLUMN mill.targets.epoch IS 'Highest epoch that the target has stored durably';
COMMENT ON COLUMN mill.targets.checked_at IS 'Time at which a worker last reached the target and compared the epochs';
COMMENT ON COLUMN mill.targets.restored_at IS
    'Time at which a worker found that the target has lost epochs that it had stored, because it was restored to an '
    'earlier time; null: never, or accepted by an operator';
COMMENT ON COLUMN mill.targets.restored_from IS 'The epoch that the target then had';
COMMENT ON COLUMN mill.targets.max_replication_lag IS
    'Workers claim only while no connected standby of the target is further behind; null: no such condition';
COMMENT ON COLUMN mill.targets.max_snapshot_age IS
    'Workers claim only while no transaction of the target has held its snapshot for longer; null: no such condition';
COMMENT ON COLUMN mill.targets.max_active_sessions IS
    'Workers claim only while at most this many sessions of the target''s server are active; null: no such condition';
REVOKE UPDATE ON mill.targets FROM mill_worker;
GRANT SELECT ON mill.targets TO mill_worker;

-- Every claim of a task with a target, and every resolution, gets a number of its own.
CREATE SEQUENCE IF NOT EXISTS mill.target_epochs;
COMMENT ON SEQUENCE mill.target_epochs IS 'Epochs: an attempt commits in its target only if its epoch is the highest';
REVOKE UPDATE ON SEQUENCE mill.target_epochs FROM mill_worker;
GRANT USAGE ON SEQUENCE mill.target_epochs TO mill_worker;

CREATE OR REPLACE FUNCTION mill.new_receipt(profile text) RETURNS uuid
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT gen_random_uuid() FROM mill.targets t WHERE t.name = profile
$$;
COMMENT ON FUNCTION mill.new_receipt IS
    'Returns the id under which the target stores the receipt of a new task; null if the profile is no target. It is '
    'random and not the id of the task, because ids come again after a restore';
GRANT EXECUTE ON FUNCTION mill.new_receipt TO mill_worker;

CREATE OR REPLACE FUNCTION mill.is_target(name text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM mill.targets t WHERE t.name = is_target.name)
$$;
COMMENT ON FUNCTION mill.is_target IS 'Returns whether there is a target of this name';
GRANT EXECUTE ON FUNCTION mill.is_target TO mill_producer;

CREATE OR REPLACE FUNCTION mill.target(name text) RETURNS uuid
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT mill.is_target(name) THEN
        RAISE EXCEPTION 'there is no target "%"', name USING ERRCODE = '22023',
            HINT = pg_catalog.format('A member of mill_owner can create it: pgmill target set %I', name);
    END IF;
    RETURN mill.profile(name);
END
$$;
COMMENT ON FUNCTION mill.target IS
    'Returns the key of a target, for the argument profile of mill.submit and mill.submit_many. Raises an error if '
    'the current user may not use it';
GRANT EXECUTE ON FUNCTION mill.target TO mill_producer;

CREATE OR REPLACE FUNCTION mill.set_target(name text, allowed text[] DEFAULT NULL, description text DEFAULT NULL,
    receipts_kept interval DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    used text;
BEGIN
    IF NOT EXISTS (SELECT FROM mill.targets t WHERE t.name = set_target.name) THEN
        used := mill.use_of_profile(set_target.name);
        IF used IS NOT NULL THEN
            RAISE EXCEPTION 'profile "%" is used by % and cannot become a target', name, used USING ERRCODE = '55000',
                HINT = 'Wait for its tasks and runs or cancel them; change or disable its jobs; change its '
                    'subscriptions; or use another name.';
        END IF;
    END IF;
    PERFORM mill.set_profile(set_target.name, set_target.allowed, set_target.description);
    INSERT INTO mill.targets AS t (name, receipts_kept)
        VALUES (set_target.name, coalesce(set_target.receipts_kept, '7 days'))
        ON CONFLICT (name) DO UPDATE SET receipts_kept = coalesce(set_target.receipts_kept, t.receipts_kept);
    PERFORM mill.record_audit('set_target', 'target ' || set_target.name, jsonb_strip_nulls(jsonb_build_object(
        'receipts_kept', set_target.receipts_kept)));
END
$$;
COMMENT ON FUNCTION mill.set_target IS
    'Creates or changes a target, and the profile of the same name as mill.set_profile does. Null arguments leave '
    'settings unchanged. mill.drop_profile removes it. For mill_owner only';

CREATE OR REPLACE FUNCTION mill.accept_restored_target(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.targets t SET restored_at = NULL, restored_from = NULL
        WHERE t.name = accept_restored_target.name AND t.restored_at IS NOT NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_audit('accept_restored_target', 'target ' || name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.accept_restored_target IS
    'Ends the problem that a target was restored to an earlier time. Returns whether there was this problem';
GRANT EXECUTE ON FUNCTION mill.accept_restored_target TO mill_operator;

CREATE OR REPLACE FUNCTION mill.raise_target_epoch(used bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A target is another system. A number that no fleet reaches must not use up the sequence.
    IF used > 1000000000000000 THEN
        RAISE EXCEPTION 'epoch % of a target is not plausible', used USING ERRCODE = '22023';
    END IF;
    -- Two callers must not lower what the other one has set.
    PERFORM mill.lock('target epochs');
    PERFORM setval('mill.target_epochs', used) FROM mill.target_epochs s WHERE s.last_value < used;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION mill.raise_target_epoch IS
    'Makes all future epochs higher than this one. A queue that was restored to an earlier time would otherwise use '
    'epochs again. Returns whether they were lower';
GRANT EXECUTE ON FUNCTION mill.raise_target_epoch TO mill_worker;

CREATE OR REPLACE FUNCTION mill.record_target_epoch(name text, confirmed bigint, before bigint, stored bigint)
RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE mill.targets t SET checked_at = clock_timestamp(), epoch = greatest(t.epoch, stored),
        restored_at = CASE WHEN before < confirmed THEN clock_timestamp() ELSE t.restored_at END,
        restored_from = CASE WHEN before < confirmed THEN before ELSE t.restored_from END
    WHERE t.name = record_target_epoch.name
$$;
COMMENT ON FUNCTION mill.record_target_epoch IS
    'Records that the target has stored an epoch durably. confirmed: targets.epoch when the worker began; before: the '
    'epoch that the target had until then. If before is lower, the target was restored to an earlier time';
GRANT EXECUTE ON FUNCTION mill.record_target_epoch TO mill_worker;

-- Conditions of targets ---------------------------------------------------------------------------
--
-- They are those of queues (06_queue_conditions.sql), evaluated in the target. About once a second, one worker that
-- reaches the target calls mill_target.check_conditions there, and stores the result here. The polls of workers read
-- it, so that the claim need not.

CREATE UNLOGGED TABLE IF NOT EXISTS mill.target_checks (
    name mill.profile_name PRIMARY KEY REFERENCES mill.targets ON DELETE CASCADE,
    begun_at timestamptz NOT NULL,
    held_back text
);
COMMENT ON TABLE mill.target_checks IS
    'Last checks of the conditions of targets. Unlogged: empty after a crash, until the next checks';
COMMENT ON COLUMN mill.target_checks.held_back IS
    'Which condition does not hold, so that workers claim no task of the target; null: every condition holds';
REVOKE INSERT, UPDATE, DELETE ON mill.target_checks FROM mill_worker;
GRANT SELECT ON mill.target_checks TO mill_worker;

CREATE OR REPLACE FUNCTION mill.targets_with_conditions(names text[]) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(t.name::text ORDER BY t.name), '{}')
    FROM mill.targets t LEFT JOIN mill.target_checks c ON c.name = t.name
    WHERE t.name = ANY (names)
        AND num_nonnulls(t.max_replication_lag, t.max_snapshot_age, t.max_active_sessions, c.held_back) > 0
$$;
COMMENT ON FUNCTION mill.targets_with_conditions IS
    'Returns those of these targets that have conditions or are still held back';
GRANT EXECUTE ON FUNCTION mill.targets_with_conditions TO mill_worker;

CREATE OR REPLACE FUNCTION mill.held_targets(names text[]) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(c.name::text ORDER BY c.name), '{}') FROM mill.target_checks c
    WHERE c.name = ANY (names) AND c.held_back IS NOT NULL
$$;
COMMENT ON FUNCTION mill.held_targets IS 'Returns those of these targets that are held back';
GRANT EXECUTE ON FUNCTION mill.held_targets TO mill_worker;

CREATE OR REPLACE FUNCTION mill.begin_target_check(name text)
RETURNS TABLE (max_replication_lag interval, max_snapshot_age interval, max_active_sessions integer)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH begun AS (
        INSERT INTO mill.target_checks AS c (name, begun_at) VALUES (begin_target_check.name, now())
            ON CONFLICT (name) DO UPDATE SET begun_at = excluded.begun_at
            -- A time in the future shows that the clock was set back.
            WHERE c.begun_at NOT BETWEEN clock_timestamp() - interval '1 second' AND clock_timestamp()
        RETURNING c.name
    )
    SELECT t.max_replication_lag, t.max_snapshot_age, t.max_active_sessions
    FROM begun b JOIN mill.targets t ON t.name = b.name
$$;
COMMENT ON FUNCTION mill.begin_target_check IS
    'Begins a check of a target for the whole fleet, and returns the conditions. Returns no row if another worker has '
    'begun one in the last second';
GRANT EXECUTE ON FUNCTION mill.begin_target_check TO mill_worker;

CREATE OR REPLACE FUNCTION mill.end_target_check(name text, reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.target_checks c SET held_back = reason
        WHERE c.name = end_target_check.name AND c.held_back IS DISTINCT FROM reason;
    IF FOUND AND reason IS NULL THEN
        PERFORM pg_notify('mill', 'sweep');
    END IF;
END
$$;
COMMENT ON FUNCTION mill.end_target_check IS
    'Stores which condition of a target does not hold; null: every condition holds';
GRANT EXECUTE ON FUNCTION mill.end_target_check TO mill_worker;

CREATE OR REPLACE FUNCTION mill.set_target_conditions(name text, max_replication_lag interval DEFAULT NULL,
    max_snapshot_age interval DEFAULT NULL, max_active_sessions integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    before jsonb;
BEGIN
    SELECT jsonb_build_object('max_replication_lag', t.max_replication_lag, 'max_snapshot_age', t.max_snapshot_age,
        'max_active_sessions', t.max_active_sessions) INTO before FROM mill.targets t
        WHERE t.name = set_target_conditions.name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no target "%"', name USING ERRCODE = '22023', HINT = 'pgmill target list';
    END IF;
    UPDATE mill.targets t SET max_replication_lag = set_target_conditions.max_replication_lag,
        max_snapshot_age = set_target_conditions.max_snapshot_age,
        max_active_sessions = set_target_conditions.max_active_sessions
        WHERE t.name = set_target_conditions.name;
    PERFORM mill.record_change('set_target_conditions', 'target ' || name, before, jsonb_build_object(
        'max_replication_lag', max_replication_lag, 'max_snapshot_age', max_snapshot_age,
        'max_active_sessions', max_active_sessions));
END
$$;
COMMENT ON FUNCTION mill.set_target_conditions IS
    'Sets the conditions under which workers claim tasks of a target; null: no such condition. While a condition does '
    'not hold, the target is held back: its tasks wait, and running ones continue. Workers check the conditions in the '
    'target about once a second';
GRANT EXECUTE ON FUNCTION mill.set_target_conditions TO mill_operator;

-- schema/09_tasks.sql -----------------------------------------------------------------------------

-- Tasks: live tasks and their deduplication keys.
--
-- A finished task leaves mill.tasks in the transaction that writes its row of mill.attempts.
--
-- A running task has a token, a worker and a session; tasks in other states have none of them. Every change
-- of a running task names its token. A task is blocked exactly while it waits for a permit.

-- Options -----------------------------------------------------------------------------------------

-- A column of mill.tasks is what statements of the queue search, order or change. Everything else that a caller
-- chooses is an attribute of mill.task_options. Every table and function copies this value as a whole: within the
-- schema, a new option is an attribute of the type, its check in mill.read_options if it needs one, and its default in
-- mill.effective if it has one. CONTRIBUTING.md names the other places. An attribute that is null has its default, and
-- a task with defaults only has no options.
DO $$
BEGIN
    IF to_regtype('mill.task_options') IS NULL THEN
        CREATE TYPE mill.task_options AS (
            tags text[],
            metadata jsonb,
            isolation mill.isolation,
            store_params boolean,
            store_output boolean,
            traceparent text,
            max_attempts mill.attempt_limit,
            retry_interval mill.retry_interval,
            backoff mill.backoff,
            jitter boolean,
            timeout mill.time_limit,
            mode mill.mode,
            at_most_once boolean,
            external boolean,
            explain boolean
        );
        -- The attributes that have a default.
        CREATE TYPE mill.effective_options AS (
            max_attempts integer,
            retry_interval interval,
            backoff mill.backoff,
            jitter boolean,
            mode mill.mode,
            at_most_once boolean,
            external boolean,
            explain boolean
        );
    END IF;
END
$$;
COMMENT ON TYPE mill.task_options IS 'Options of a task, from the argument options of mill.submit; null: default';
COMMENT ON TYPE mill.effective_options IS 'Options of a task with their defaults, from mill.effective';
COMMENT ON COLUMN mill.task_options.tags IS 'Labels to search by, sorted; null: none';
COMMENT ON COLUMN mill.task_options.metadata IS 'JSON object of the caller, which pgmill stores and shows; null: none';
COMMENT ON COLUMN mill.task_options.isolation IS
    'Isolation level of the transaction of the task, and of the transactions that a task in autocommit mode opens; '
    'null: the default of the login and the database';
COMMENT ON COLUMN mill.task_options.store_params IS
    'Whether the params of a finished task are stored. Except in mill.job_tasks: false if the task has params that are '
    'not stored, else null';
COMMENT ON COLUMN mill.task_options.store_output IS
    'Whether notices, result and plan of a finished task are stored. Except in mill.job_tasks: false or null';
COMMENT ON COLUMN mill.task_options.traceparent IS
    'Trace context of the caller, in the form of the HTTP header traceparent of W3C Trace Context; null: none';
COMMENT ON COLUMN mill.task_options.max_attempts IS
    'Number of failed attempts after which the task fails; the first attempt counts too';
COMMENT ON COLUMN mill.task_options.jitter IS
    'Whether the wait before a retry is drawn at random between zero and the full wait';
COMMENT ON COLUMN mill.task_options.timeout IS 'Maximum run time of an attempt; null: unlimited';
COMMENT ON COLUMN mill.task_options.at_most_once IS
    'Autocommit only: if it is not known whether an attempt ended, the task ends as unknown and is not retried '
    'automatically';
COMMENT ON COLUMN mill.task_options.external IS
    'Whether the task has effects outside this cluster. If so, its claim is made durable before the statement '
    'starts';
COMMENT ON COLUMN mill.task_options.explain IS
    'Whether the statement runs under EXPLAIN (ANALYZE, BUFFERS, WAL). The plan is stored instead of the rows';

-- The planner inlines the function, and computes only the attributes that a query uses. So it has no search_path, and
-- names the schema of its operator.
CREATE OR REPLACE FUNCTION mill.effective(options mill.task_options) RETURNS mill.effective_options
LANGUAGE sql STABLE AS $$
    SELECT ROW(
        coalesce(options.max_attempts, CASE WHEN options.at_most_once THEN 1 ELSE 3 END),
        coalesce(options.retry_interval, '10 seconds'),
        coalesce(options.backoff, 'exponential'),
        coalesce(options.jitter, options.backoff OPERATOR(pg_catalog.<>) 'fixed', true),
        coalesce(options.mode, 'transaction'),
        coalesce(options.at_most_once, false),
        coalesce(options.external, false),
        coalesce(options.explain, false))::mill.effective_options
$$;
COMMENT ON FUNCTION mill.effective IS 'Returns the options of a task with their defaults';
GRANT EXECUTE ON FUNCTION mill.effective TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.read_labels(document jsonb, OUT tags text[], OUT metadata jsonb)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong jsonb;
BEGIN
    IF jsonb_typeof(document->'tags') NOT IN ('array', 'null') THEN
        RAISE EXCEPTION 'tags is a JSON %, not an array of strings', jsonb_typeof(document->'tags')
            USING ERRCODE = '22023';
    ELSIF jsonb_typeof(document->'metadata') NOT IN ('object', 'null') THEN
        RAISE EXCEPTION 'metadata is a JSON %, not an object', jsonb_typeof(document->'metadata')
            USING ERRCODE = '22023';
    ELSIF octet_length((document->'metadata')::text) > 16384 THEN
        RAISE EXCEPTION 'metadata is % bytes long; the maximum is 16384 bytes',
            octet_length((document->'metadata')::text) USING ERRCODE = '54000';
    END IF;
    metadata := nullif(nullif(document->'metadata', 'null'), '{}');
    IF jsonb_typeof(document->'tags') = 'array' THEN
        IF jsonb_array_length(document->'tags') > 32 THEN
            RAISE EXCEPTION 'more than 32 tags' USING ERRCODE = '54000';
        END IF;
        SELECT t INTO wrong FROM jsonb_array_elements(document->'tags') AS t WHERE jsonb_typeof(t) <> 'string'
            OR (t #>> '{}') !~ '^[^[:cntrl:]]{1,64}$' OR btrim(t #>> '{}') <> t #>> '{}' LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'invalid tag %', wrong USING ERRCODE = '22023', HINT = 'A tag is a string of 1 to 64 '
                'characters without control characters and without spaces at its ends.';
        END IF;
        tags := (SELECT array_agg(DISTINCT t COLLATE "C" ORDER BY t COLLATE "C")
            FROM jsonb_array_elements_text(document->'tags') AS t);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.read_labels IS
    'Returns the tags (sorted, without duplicates) and the metadata of a document {"tags": ["etl", …], "metadata": '
    '{…}, …}; null for what the document does not have. Raises an error if a value is invalid';

CREATE OR REPLACE FUNCTION mill.check_traceparent(document jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF document->>'traceparent' !~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' THEN
        RAISE EXCEPTION 'invalid traceparent "%"', left(document->>'traceparent', 100) USING ERRCODE = '22023',
            HINT = 'A traceparent has a version, a trace id, a parent id and flags, as lower-case hexadecimal digits: '
                '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_traceparent IS
    'Raises an error if the document has a traceparent that does not have the form of W3C Trace Context';

CREATE OR REPLACE FUNCTION mill.check_at_most_once(options mill.task_options) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF options.mode IS DISTINCT FROM 'autocommit' OR options.max_attempts <> 1 THEN
        RAISE EXCEPTION 'at_most_once requires mode autocommit and allows one attempt' USING ERRCODE = '23514';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_at_most_once IS
    'Raises an error if a task with these options cannot run at most once';

CREATE OR REPLACE FUNCTION mill.read_options(document jsonb) RETURNS mill.task_options
LANGUAGE plpgsql STABLE AS $$
DECLARE
    options mill.task_options;
    isolation text;
BEGIN
    IF document ?| '{isolation,metadata,tags,traceparent}' THEN
        PERFORM mill.check_traceparent(document);
        -- Accepts the spelling of PostgreSQL, too: repeatable read.
        isolation := replace(lower(document->>'isolation'), ' ', '_');
        IF isolation <> ALL (enum_range(NULL::mill.isolation)::text[]) THEN
            RAISE EXCEPTION 'isolation is "%"', document->>'isolation' USING ERRCODE = '22023',
                HINT = format('Use one of %s.', array_to_string(enum_range(NULL::mill.isolation), ', '));
        END IF;
        options := jsonb_populate_record(NULL::mill.task_options,
            document - '{tags,metadata}'::text[] || jsonb_build_object('isolation', isolation));
        SELECT l.tags, l.metadata INTO options.tags, options.metadata FROM mill.read_labels(document) AS l;
    ELSE
        options := jsonb_populate_record(NULL::mill.task_options, document);
    END IF;
    IF options.at_most_once THEN
        PERFORM mill.check_at_most_once(options);
    END IF;
    RETURN CASE WHEN NOT options IS NULL THEN options END;
END
$$;
COMMENT ON FUNCTION mill.read_options IS
    'Returns the options of a task that the document has; null if it has none. Ignores other keys. Raises an error if '
    'a value is invalid';

CREATE OR REPLACE FUNCTION mill.check_keys(options jsonb, allowed text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unknown text;
BEGIN
    IF jsonb_typeof(options) <> 'object' THEN
        RAISE EXCEPTION 'options is a JSON %, not an object', jsonb_typeof(options) USING ERRCODE = '22023';
    END IF;
    SELECT k INTO unknown FROM jsonb_object_keys(options) AS k WHERE k <> ALL (allowed) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'unknown option "%"', unknown USING ERRCODE = '22023',
            HINT = format('The options are %s.', array_to_string(allowed, ', '));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_keys IS
    'Raises an error if options is not a JSON object or has a key that is not allowed';

CREATE OR REPLACE FUNCTION mill.task_option_names() RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(k ORDER BY k)
        FROM jsonb_object_keys(to_jsonb(jsonb_populate_record(NULL::mill.task_options, '{}'))) AS k
$$;
COMMENT ON FUNCTION mill.task_option_names IS 'Returns the names of the attributes of mill.task_options';

CREATE OR REPLACE FUNCTION mill.check_options(document jsonb, other_keys text[]) RETURNS void
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.check_keys(document,
        ARRAY(SELECT k FROM unnest(other_keys || mill.task_option_names()) AS k ORDER BY k))
$$;
COMMENT ON FUNCTION mill.check_options IS
    'Raises an error if a document has a key that is neither an option of tasks nor one of these. A new option is a '
    'new key, because a migration cannot add an argument while programs call the function';

CREATE OR REPLACE FUNCTION mill.check_labels(options jsonb) RETURNS void
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.check_keys(options, '{metadata,tags}')
$$;
COMMENT ON FUNCTION mill.check_labels IS
    'Raises an error if the argument options of a job, a run or a schedule has an unknown key';

-- Tables ------------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.tasks (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    -- The time of the call. The transaction may have begun long before.
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at mill.due_time NOT NULL DEFAULT clock_timestamp(),
    claimed_at timestamptz,
    session_started_at timestamptz,
    claimed_by uuid,
    token uuid,
    state mill.state NOT NULL DEFAULT 'pending',
    priority mill.priority NOT NULL DEFAULT 'normal',
    attempt mill.attempt_count NOT NULL DEFAULT 0,
    failures mill.attempt_count NOT NULL DEFAULT 0,
    transient_failures mill.attempt_count NOT NULL DEFAULT 0,
    crashes mill.attempt_count NOT NULL DEFAULT 0,
    session_pid integer,
    queue mill.queue_name NOT NULL DEFAULT 'default',
    name mill.label,
    key mill.label,
    concurrency_key mill.label,
    group_name mill.label,
    run_id bigint,
    node bigint,
    limits bigint[],
    blocking_limit_id bigint,
    start_by timestamptz,
    run_as mill.profile_name NOT NULL DEFAULT '',
    params jsonb,
    statement mill.statement NOT NULL,
    options mill.task_options,
    receipt uuid,
    CONSTRAINT node_of_a_run CHECK (node IS NULL OR run_id IS NOT NULL),
    CONSTRAINT blocked_has_limit CHECK ((state = 'blocked') = (blocking_limit_id IS NOT NULL)),
    CONSTRAINT running_is_claimed CHECK (
        num_nonnulls(token, claimed_by, claimed_at, session_pid, session_started_at)
        = CASE WHEN state = 'running' THEN 5 ELSE 0 END),
    CONSTRAINT running_has_started CHECK (state <> 'running' OR attempt > 0)
) WITH (
    -- This table changes constantly. It is vacuumed after a fixed number of changed rows, at full speed,
    -- and without the lock that truncation requires.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off,
    -- Stores large statements out of line, so that a claim copies the row without the statement.
    toast_tuple_target = 512
);
COMMENT ON TABLE mill.tasks IS 'Live tasks. A finished task moves from this table to mill.attempts';
COMMENT ON COLUMN mill.tasks.due_at IS 'Time before which the task is not claimed';
COMMENT ON COLUMN mill.tasks.token IS
    'Fencing token, random, one per claim. Every change of a running task requires it';
COMMENT ON COLUMN mill.tasks.claimed_by IS 'Worker that holds the claim: workers.id';
COMMENT ON COLUMN mill.tasks.session_pid IS
    'Backend of the reader that runs the statement. It is terminated before the task is reclaimed';
COMMENT ON COLUMN mill.tasks.session_started_at IS
    'backend_start of session_pid, which distinguishes that backend from a later one with the same pid';
COMMENT ON COLUMN mill.tasks.attempt IS 'Number of the running attempt, or of the last one';
COMMENT ON COLUMN mill.tasks.failures IS 'Attempts that failed or timed out';
COMMENT ON COLUMN mill.tasks.transient_failures IS
    'Attempts that ended with a serialization failure, a deadlock or a lost connection. Up to a bound they do not '
    'count towards max_attempts';
COMMENT ON COLUMN mill.tasks.crashes IS
    'Attempts whose worker died, and crashes of the server while no other task could be the cause. Up to '
    'settings.max_crashes they do not count towards max_attempts';
COMMENT ON COLUMN mill.tasks.key IS 'Deduplication key, unique among live tasks, see mill.dedup_keys';
COMMENT ON COLUMN mill.tasks.concurrency_key IS
    'Tasks with the same key run one at a time, or as many of them at once as the limit of the key allows';
COMMENT ON COLUMN mill.tasks.run_id IS
    'Run that the task belongs to. For a task without a node, which belongs to no run: the run in which the limit of '
    'its group counts the task';
COMMENT ON COLUMN mill.tasks.node IS 'Identifies the task within its run: run_tasks.node';
COMMENT ON COLUMN mill.tasks.limits IS
    'mill.limits.id of each permit that the task needs, in the order of acquisition; null: none. Not above 0: a limit '
    'that does not exist yet, see mill.required_limits';
COMMENT ON COLUMN mill.tasks.blocking_limit_id IS
    'Blocked tasks: the limit whose permit the task waits for. The task already holds the permits of the limits that '
    'precede this one in limits';
COMMENT ON COLUMN mill.tasks.run_as IS 'Profile whose login runs the task; empty: the default task login';
COMMENT ON COLUMN mill.tasks.start_by IS
    'Pending tasks: time at which the active period of the group closes. Claims then skip the task';
COMMENT ON COLUMN mill.tasks.params IS 'JSON array of values, bound as $1, $2, …';
COMMENT ON COLUMN mill.tasks.receipt IS
    'Tasks with a target: id of the receipt that the target stores when the task succeeds; null: no target';

-- Used by the claim (crates/queue/src/transition/claim.rs): each queue, priority and profile is one index
-- range.
CREATE INDEX IF NOT EXISTS tasks_pending ON mill.tasks (queue, priority, run_as, id)
    WHERE state = 'pending';
-- Used by mill.grant_permits to find the oldest tasks of each limit and priority.
CREATE INDEX IF NOT EXISTS tasks_blocked ON mill.tasks (blocking_limit_id, priority, id)
    WHERE state = 'blocked';
-- Used by mill.block_pending to find the pending tasks of a group after the settings of the group
-- change.
CREATE INDEX IF NOT EXISTS tasks_group ON mill.tasks (group_name)
    WHERE state = 'pending' AND group_name IS NOT NULL;
-- Used by the promoter (crates/queue/src/transition/promote.rs).
CREATE INDEX IF NOT EXISTS tasks_scheduled ON mill.tasks (due_at, id) WHERE state = 'scheduled';
-- Used by the reclaimer (crates/queue/src/transition/reclaim.rs) and mill.running. Statements that finish a
-- task filter by id and token, and never by state, so that the planner cannot choose this index for
-- them: while an old snapshot is open, the index is full of dead entries.
CREATE INDEX IF NOT EXISTS tasks_running ON mill.tasks (claimed_by) WHERE state = 'running';
-- Used by the duty that deletes old receipts (worker/src/target/upkeep.rs).
CREATE INDEX IF NOT EXISTS tasks_receipt ON mill.tasks (receipt) WHERE receipt IS NOT NULL;
-- Workers claim and promote. They can neither create a task nor change what it runs, and as whom: the task would then
-- run with the rights of a profile whose credentials another worker has.
REVOKE INSERT, UPDATE, DELETE ON mill.tasks FROM mill_worker;
GRANT SELECT, UPDATE (state, blocking_limit_id, attempt, start_by, claimed_at, claimed_by, token, session_pid,
    session_started_at) ON mill.tasks TO mill_worker;

CREATE OR REPLACE VIEW mill.visible_tasks AS
    -- A scalar subquery is evaluated once, a plain function call once per row.
    SELECT x.id, x.enqueued_at, x.due_at, x.claimed_at, x.session_started_at, x.claimed_by,
        x.state, x.priority, x.attempt, x.failures, x.transient_failures, x.crashes, x.session_pid, x.queue, x.name,
        x.key, x.concurrency_key, x.group_name, x.run_id, x.node, x.limits, x.blocking_limit_id, x.start_by, x.run_as,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.params END AS params,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.statement END AS statement,
        (x.options).timeout, (x.options).tags, (x.options).metadata, x.options, (mill.effective(x.options)).*
    FROM mill.tasks x;
COMMENT ON VIEW mill.visible_tasks IS
    'mill.tasks without tokens, for mill_viewer. Hides statements and params if settings.hide_statements is set';

CREATE OR REPLACE FUNCTION mill.is_short(statement text, params jsonb) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT octet_length(statement) <= 65536 AND coalesce(pg_column_size(params) <= 1000, true)
$$;
COMMENT ON FUNCTION mill.is_short IS
    'Returns whether a claim contains statement and params of a task. Neither value is read to find out';
GRANT EXECUTE ON FUNCTION mill.is_short TO mill_worker;

CREATE OR REPLACE FUNCTION mill.initial_state(due_at timestamptz, chain bigint[]) RETURNS mill.state
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN due_at > now() THEN 'scheduled' WHEN chain IS NOT NULL THEN 'blocked'
        ELSE 'pending' END::mill.state
$$;
COMMENT ON FUNCTION mill.initial_state IS
    'Returns the initial state of a task with this due time (null: now) and these limits';
GRANT EXECUTE ON FUNCTION mill.initial_state TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.dedup_keys (
    key text PRIMARY KEY,
    task_id bigint NOT NULL
);
COMMENT ON TABLE mill.dedup_keys IS
    'The live task of each deduplication key. A table of its own instead of an index on mill.tasks, so that tasks '
    'without a key have no overhead';
REVOKE INSERT, UPDATE, DELETE ON mill.dedup_keys FROM mill_worker;
GRANT SELECT ON mill.dedup_keys TO mill_worker;

-- schema/10_attempts.sql --------------------------------------------------------------------------

-- Attempts: the history, in daily partitions.
--
-- Partitions are created in advance, and dropped as a whole.
--
-- Rows of mill.attempts are only inserted. 11_prune.sql drops old partitions.

CREATE TABLE IF NOT EXISTS mill.attempts (
    finished_at timestamptz NOT NULL,
    task_id bigint NOT NULL,
    enqueued_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    started_at timestamptz,
    worker_id uuid,
    token uuid,
    rows bigint,
    attempt integer NOT NULL,
    outcome mill.outcome NOT NULL,
    priority mill.priority NOT NULL,
    session_pid integer,
    position integer,
    final boolean NOT NULL,
    queue text NOT NULL,
    name text,
    key text,
    concurrency_key text,
    group_name text,
    run_id bigint,
    node bigint,
    sqlstate text,
    message text,
    detail text,
    hint text,
    context text,
    notices jsonb,
    result jsonb,
    plan jsonb,
    run_as text NOT NULL DEFAULT '',
    params jsonb,
    statement text NOT NULL,
    options mill.task_options,
    receipt uuid
) PARTITION BY RANGE (finished_at);
COMMENT ON TABLE mill.attempts IS
    'One row per finished attempt. Rows are never updated. Daily partitions (UTC) are created in advance, and '
    'dropped after settings.history_retention';
COMMENT ON COLUMN mill.attempts.final IS 'Whether the task ended with this attempt';
COMMENT ON COLUMN mill.attempts.started_at IS
    'Time at which the attempt was claimed; null if the task ended without being claimed';
COMMENT ON COLUMN mill.attempts.rows IS 'Rows returned or affected, summed over the statements of the task';
COMMENT ON COLUMN mill.attempts.position IS 'Position of the error in the statement, in characters from 1';
COMMENT ON COLUMN mill.attempts.notices IS
    'Messages that the statement raised below level ERROR, truncated: [{"severity", "message", …}]';
COMMENT ON COLUMN mill.attempts.receipt IS 'Tasks with a target: id of the receipt in the target';
COMMENT ON COLUMN mill.attempts.result IS
    'First rows that the statement returned, truncated: {"columns", "rows", "truncated"}. If values of the first row '
    'are truncated or placeholders, also {"unusable": {column: reason}}';
COMMENT ON COLUMN mill.attempts.plan IS
    'Tasks with explain: output of EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON), size-limited: {"Plan", "Planning '
    'Time", "Execution Time", …}';
-- Used by pgmill task show, mill.retry and crates/queue/src/transition/resolve_commit.rs.
CREATE INDEX IF NOT EXISTS attempts_task ON mill.attempts (task_id);
-- Used by crates/queue/src/read/history.rs to find the attempts of the last hours of a day. Rows are inserted
-- in chronological order, so a BRIN index is selective enough and costs almost nothing per insert.
CREATE INDEX IF NOT EXISTS attempts_finished ON mill.attempts USING brin (finished_at);
-- Used by mill.durations to find the distinct names, and the last attempts of each name. Tasks without a
-- name have no overhead.
CREATE INDEX IF NOT EXISTS attempts_named ON mill.attempts (queue, name, finished_at) WHERE name IS NOT NULL;
-- Used by mill.failure_groups.
CREATE INDEX IF NOT EXISTS attempts_failed ON mill.attempts (finished_at)
    WHERE outcome <> 'succeeded' AND outcome <> 'cancelled';
REVOKE INSERT ON mill.attempts FROM mill_worker;
GRANT SELECT ON mill.attempts TO mill_worker;

CREATE OR REPLACE VIEW mill.visible_attempts AS
    SELECT x.finished_at, x.task_id, x.enqueued_at, x.due_at, x.started_at, x.worker_id, x.rows,
        x.attempt, x.outcome, x.priority, x.session_pid, x.position, x.final, x.queue, x.name, x.key, x.concurrency_key,
        x.group_name, x.run_id, x.node, x.sqlstate, x.run_as,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.message END AS message,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.detail END AS detail,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.hint END AS hint,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.context END AS context,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.notices END AS notices,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.result END AS result,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.plan END AS plan,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.params END AS params,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.statement END AS statement,
        (x.options).timeout, (x.options).tags, (x.options).metadata, x.options, (mill.effective(x.options)).*
    FROM mill.attempts x;
COMMENT ON VIEW mill.visible_attempts IS
    'mill.attempts without tokens, for mill_viewer. Hides statements and their output if settings.hide_statements is '
    'set';

CREATE TABLE IF NOT EXISTS mill.history_state (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    day date NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')::date,
    trusted_from timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE mill.history_state IS
    'What the maintenance of history has seen of the clock';
COMMENT ON COLUMN mill.history_state.day IS 'Last day (UTC) on which mill.clock_is_trusted was called';
COMMENT ON COLUMN mill.history_state.trusted_from IS
    'Until then, nothing is deleted because of its age: the clock has skipped a day, which may be an error';
INSERT INTO mill.history_state DEFAULT VALUES ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION mill.prepare_history(days_ahead integer DEFAULT 7) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
SET default_tablespace = '' SET default_table_access_method = 'heap' AS $$
DECLARE
    made integer := 0;
    day date;
    partition_name text;
    others text;
BEGIN
    -- The settings of the database or of the caller decide nothing about the partition, but a tablespace of the
    -- parent does.
    PERFORM set_config('default_tablespace', s.spcname, true)
        FROM pg_class c JOIN pg_tablespace s ON s.oid = c.reltablespace WHERE c.oid = 'mill.attempts'::regclass;
    FOR day IN SELECT generate_series(current_date, current_date + days_ahead, '1 day')::date LOOP
        partition_name := 'attempts_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('mill.' || partition_name) IS NOT NULL;
        -- The lock lets one session create the partition. Sessions that waited for the lock then find
        -- the partition.
        PERFORM mill.lock('history');
        CONTINUE WHEN to_regclass('mill.' || partition_name) IS NOT NULL;
        -- CREATE TABLE and ATTACH PARTITION take a lock that allows inserts into the other partitions.
        -- CREATE TABLE … PARTITION OF takes a lock that does not.
        EXECUTE format('CREATE TABLE mill.%I (LIKE mill.attempts INCLUDING DEFAULTS)', partition_name);
        -- Privileges on mill.attempts are enough to read its partitions. Default privileges can give others.
        SELECT string_agg(DISTINCT CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::regrole::text END, ', ')
            INTO others FROM pg_class c CROSS JOIN aclexplode(c.relacl) x
            WHERE c.oid = format('mill.%I', partition_name)::regclass AND x.grantee <> c.relowner;
        IF others IS NOT NULL THEN
            EXECUTE format('REVOKE ALL ON mill.%I FROM %s', partition_name, others);
        END IF;
        -- The partition has no key. If it is published for logical replication, the server rejects
        -- updates and deletes of its rows unless they have a replica identity.
        EXECUTE format('ALTER TABLE mill.%I REPLICA IDENTITY FULL', partition_name);
        EXECUTE format('ALTER TABLE mill.attempts ATTACH PARTITION mill.%I FOR VALUES FROM (%L) TO (%L)',
            partition_name, day::timestamptz, (day + 1)::timestamptz);
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;
COMMENT ON FUNCTION mill.prepare_history IS
    'Creates the missing partitions of mill.attempts for today and the given number of days ahead. Returns the number '
    'of partitions created';
GRANT EXECUTE ON FUNCTION mill.prepare_history TO mill_worker;
DO $$ BEGIN PERFORM mill.prepare_history(); END $$;

-- schema/11_prune.sql -----------------------------------------------------------------------------

-- Prune: deletes what is older than its retention, or no longer needed.
--
-- Each part is a call and a transaction of its own for workers, so that none waits for another one and
-- no lock is held for long.
--
-- What counts is the time that the clock of the server shows. A clock that is wrong for a while must not delete
-- history, so a part that deletes by age first asks mill.clock_is_trusted.

CREATE OR REPLACE FUNCTION mill.clock_is_trusted() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE
    state mill.history_state;
BEGIN
    SELECT s.* INTO state FROM mill.history_state s;
    IF state.day <> current_date THEN
        -- While the fleet works, some worker calls this function every hour. A clock that has skipped a day is wrong,
        -- or the fleet was down: both are over when the clock has gone on for ten minutes from there. A clock that was
        -- set back is right again.
        UPDATE mill.history_state s SET day = current_date,
                trusted_from = CASE WHEN current_date > s.day + 1 THEN now() + interval '10 minutes'
                    WHEN current_date < s.day THEN now() ELSE s.trusted_from END
            WHERE s.day <> current_date;
        SELECT s.* INTO state FROM mill.history_state s;
    END IF;
    RETURN now() >= state.trusted_from;
END
$$;
COMMENT ON FUNCTION mill.clock_is_trusted IS
    'Returns whether rows may be deleted because of their age, and records the day. False for the first ten minutes '
    'after the clock has skipped a day';

CREATE OR REPLACE FUNCTION mill.prune_runs() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE
    oldest CONSTANT date := (SELECT (now() - s.history_retention)::date FROM mill.settings s);
    old_runs bigint[];
BEGIN
    IF NOT mill.clock_is_trusted() THEN
        RETURN 0;
    END IF;
    SELECT array_agg(r.id) INTO old_runs FROM (
        SELECT r.id FROM mill.runs r WHERE r.finished_at < oldest ORDER BY r.id LIMIT 1000
        FOR UPDATE SKIP LOCKED) AS r;
    DELETE FROM mill.run_edges e WHERE e.run_id = ANY (old_runs);
    DELETE FROM mill.run_tasks t WHERE t.run_id = ANY (old_runs);
    DELETE FROM mill.run_events e WHERE e.run_id = ANY (old_runs);
    DELETE FROM mill.runs r WHERE r.id = ANY (old_runs);
    RETURN coalesce(cardinality(old_runs), 0);
END
$$;
COMMENT ON FUNCTION mill.prune_runs IS
    'Deletes up to 1000 runs that finished before the days that settings.history_retention keeps, with their tasks. '
    'Returns the number of runs deleted. The caller repeats the call until it returns less than 1000';
GRANT EXECUTE ON FUNCTION mill.prune_runs TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune_schedule_log() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted integer;
    unused text[];
BEGIN
    IF NOT mill.clock_is_trusted() THEN
        RETURN 0;
    END IF;
    -- Ids are almost in chronological order, so only the lowest ids are examined.
    DELETE FROM mill.schedule_log l USING (SELECT o.id FROM mill.schedule_log o ORDER BY o.id LIMIT 10000) AS oldest,
            mill.settings s
        WHERE l.id = oldest.id AND l.logged_at < now() - s.schedule_log_retention;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    -- A run refers to its schedule, so the schedule stays as long as the last of its runs.
    DELETE FROM mill.schedules s WHERE s.id IN (SELECT x.id FROM mill.schedules x CROSS JOIN mill.settings t
        WHERE x.removed_at < now() - t.schedule_log_retention
            AND NOT EXISTS (SELECT FROM mill.runs r WHERE r.schedule_id = x.id)
        FOR UPDATE OF x SKIP LOCKED);
    DELETE FROM mill.backfills b USING mill.settings t
        WHERE NOT EXISTS (SELECT FROM mill.runs r WHERE r.backfill_id = b.id)
            AND (b.finished_at < now() - t.schedule_log_retention
                OR NOT EXISTS (SELECT FROM mill.schedules s WHERE s.id = b.schedule_id));
    SELECT array_agg(j.name) INTO unused FROM (SELECT x.name FROM mill.jobs x CROSS JOIN mill.settings t
        WHERE x.of_schedule AND x.disabled_at < now() - t.schedule_log_retention
            AND NOT EXISTS (SELECT FROM mill.schedules s WHERE x.name = ANY (s.jobs))
        FOR UPDATE OF x SKIP LOCKED) AS j;
    DELETE FROM mill.job_edges e WHERE e.job = ANY (unused);
    DELETE FROM mill.job_tasks t WHERE t.job = ANY (unused);
    DELETE FROM mill.jobs j WHERE j.name = ANY (unused);
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION mill.prune_schedule_log IS
    'Deletes rows older than settings.schedule_log_retention, up to 10000, and schedules that were removed before this '
    'time and have no run left, with their jobs and backfills. Returns the number of deleted rows of the log';
GRANT EXECUTE ON FUNCTION mill.prune_schedule_log TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune_idempotency_keys() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted integer;
BEGIN
    IF NOT mill.clock_is_trusted() THEN
        RETURN 0;
    END IF;
    DELETE FROM mill.idempotency_keys k WHERE k.ctid = ANY (ARRAY(SELECT o.ctid FROM mill.idempotency_keys o
        WHERE o.created_at < now() - interval '1 day' ORDER BY o.created_at LIMIT 10000 FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION mill.prune_idempotency_keys IS
    'Deletes up to 10000 idempotency keys that are older than a day. Returns their number';
GRANT EXECUTE ON FUNCTION mill.prune_idempotency_keys TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune_notifications() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted integer;
    orphans integer;
BEGIN
    IF NOT mill.clock_is_trusted() THEN
        RETURN 0;
    END IF;
    -- A disabled subscription, or one whose destination no worker has, attempts nothing.
    UPDATE mill.notifications n SET dead_at = clock_timestamp(),
            last_error = coalesce(n.last_error, 'no worker has sent the notification in time')
        WHERE n.id IN (SELECT x.id FROM mill.subscriptions s CROSS JOIN LATERAL (SELECT o.id FROM mill.notifications o
            WHERE o.subscription_id = s.id AND o.sent_at IS NULL AND o.dead_at IS NULL AND o.retry_until <= now()
            ORDER BY o.id LIMIT 10000) AS x)
            AND n.next_attempt_at <= now();
    DELETE FROM mill.notifications n WHERE n.id IN (SELECT x.id FROM mill.notifications x, mill.settings t
        WHERE (x.sent_at IS NOT NULL OR x.dead_at IS NOT NULL)
            AND coalesce(x.sent_at, x.dead_at) < now() - CASE WHEN x.sent_at IS NOT NULL THEN interval '1 day'
                ELSE t.history_retention END
        ORDER BY coalesce(x.sent_at, x.dead_at) LIMIT 10000);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    -- A transaction may insert a notification while its subscription is removed.
    DELETE FROM mill.notifications n WHERE n.id IN (SELECT x.id FROM mill.notifications x
        WHERE x.sent_at IS NULL AND x.dead_at IS NULL
            AND NOT EXISTS (SELECT FROM mill.subscriptions s WHERE s.id = x.subscription_id) LIMIT 10000);
    GET DIAGNOSTICS orphans = ROW_COUNT;
    RETURN deleted + orphans;
END
$$;
COMMENT ON FUNCTION mill.prune_notifications IS
    'Deletes delivered notifications after a day and dead ones after settings.history_retention, up to 10000 of each. '
    'Marks notifications as dead that were not attempted within three days. Returns the number of deleted rows';
GRANT EXECUTE ON FUNCTION mill.prune_notifications TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune_rows() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE
    deleted integer := 0;
    more integer;
BEGIN
    DELETE FROM mill.cancel_requests r
        WHERE NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = r.task_id);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    DELETE FROM mill.progress p
        WHERE NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = p.task_id AND t.state = 'running');
    GET DIAGNOSTICS more = ROW_COUNT;
    deleted := deleted + more;
    -- A permit counts for a minute at most after its task has ended.
    DELETE FROM mill.permits p
        WHERE p.counts_until < now() - interval '1 minute'
            OR p.counts_until IS NULL AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = p.task_id);
    GET DIAGNOSTICS more = ROW_COUNT;
    deleted := deleted + more;
    IF NOT mill.clock_is_trusted() THEN
        RETURN deleted;
    END IF;
    -- Ids are almost in chronological order, so it suffices to examine the lowest ids.
    DELETE FROM mill.audit a USING (SELECT o.id FROM mill.audit o ORDER BY o.id LIMIT 50000) AS first, mill.settings s
        WHERE a.id = first.id AND a.at < now() - s.audit_retention;
    GET DIAGNOSTICS more = ROW_COUNT;
    deleted := deleted + more;
    DELETE FROM mill.worker_starts s
        WHERE s.started_at < (SELECT (now() - x.history_retention)::date FROM mill.settings x)
            AND NOT EXISTS (SELECT FROM mill.workers w WHERE w.id = s.id);
    GET DIAGNOSTICS more = ROW_COUNT;
    RETURN deleted + more;
END
$$;
COMMENT ON FUNCTION mill.prune_rows IS
    'Deletes rows about tasks that have ended, old rows of the audit, and starts of workers that history no longer '
    'names. Returns their number';
GRANT EXECUTE ON FUNCTION mill.prune_rows TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune_limits() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    idle_limits bigint[];
    deleted integer;
BEGIN
    -- An enqueue locks its limits until its tasks are visible. So the second statement, which looks for tasks again,
    -- sees those that were not yet visible to the first. EXCEPT reads the tasks once. With NOT IN, the planner compares
    -- each limit with each task if it expects too many tasks for a hash table, as it does without statistics.
    idle_limits := ARRAY(SELECT l.id FROM mill.limits l WHERE l.id = ANY (ARRAY(
        SELECT i.id FROM mill.limits i
        WHERE (i.kind = 'group' OR i.kind = 'key' AND i.max_running = 1 AND i.rate_starts IS NULL AND NOT i.explicit)
            AND NOT EXISTS (SELECT FROM mill.permits p WHERE p.limit_id = i.id)
        EXCEPT SELECT unnest(t.limits) FROM mill.tasks t WHERE t.limits IS NOT NULL)) FOR UPDATE OF l SKIP LOCKED);
    DELETE FROM mill.limits l WHERE l.id = ANY (ARRAY(
        SELECT unnest(idle_limits) EXCEPT SELECT unnest(t.limits) FROM mill.tasks t WHERE t.limits IS NOT NULL));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION mill.prune_limits IS
    'Deletes default limits of concurrency keys that no task has, and limits of finished runs. Returns their number';
GRANT EXECUTE ON FUNCTION mill.prune_limits TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune_history(max_count integer DEFAULT 20, OUT dropped integer, OUT remaining integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
SET lock_timeout = '100ms' AS $$
DECLARE
    due name[];
BEGIN
    SELECT array_agg(c.relname ORDER BY c.relname) INTO due
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            CROSS JOIN mill.settings s
        WHERE i.inhparent = 'mill.attempts'::regclass AND c.relname ~ '^attempts_[0-9]{8}$'
            AND right(c.relname, 8)::date < (now() - s.history_retention)::date;
    dropped := 0;
    remaining := coalesce(cardinality(due), 0);
    IF remaining > 0 AND NOT mill.clock_is_trusted() THEN
        remaining := 0;
    END IF;
    -- A reader of history holds the partitions until its transaction ends. While this waits for such a reader, no task
    -- can complete, so it gives up soon. A transaction that drops many partitions needs many locks.
    WHILE remaining > 0 AND dropped < max_count LOOP
        EXECUTE format('DROP TABLE mill.%I', due[dropped + 1]);
        dropped := dropped + 1;
        remaining := remaining - 1;
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    dropped := 0;
    remaining := cardinality(due);
END
$$;
COMMENT ON FUNCTION mill.prune_history IS
    'Drops up to max_count partitions of mill.attempts that are older than settings.history_retention, the oldest '
    'first. Drops none if a session that reads history holds one of them. remaining: number of such partitions that '
    'are left';
GRANT EXECUTE ON FUNCTION mill.prune_history TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.prune_runs(), mill.prune_rows(), mill.prune_limits();
    -- Comes last, because no task can complete from here to the end of the transaction.
    RETURN (SELECT h.dropped FROM mill.prune_history() AS h);
END
$$;
COMMENT ON FUNCTION mill.prune IS
    'Does what workers do every hour: drops up to 20 partitions of mill.attempts older than '
    'settings.history_retention, and deletes up to 1000 runs, and other rows that are no longer needed. Returns the '
    'number of partitions dropped';
GRANT EXECUTE ON FUNCTION mill.prune TO mill_worker;

-- schema/12_workers.sql ---------------------------------------------------------------------------

-- Workers: live ones with their heartbeats, cancel requests, progress.
--
-- Also the reserved readers of each worker, and the process behind each worker id.
--
-- mill.workers and mill.progress are unlogged: they describe the present, and are empty after a crash.

CREATE UNLOGGED TABLE IF NOT EXISTS mill.workers (
    id uuid PRIMARY KEY,
    session_pid integer NOT NULL,
    session_started_at timestamptz NOT NULL,
    heartbeat bigint NOT NULL DEFAULT 0,
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    heartbeat_interval interval NOT NULL CHECK (heartbeat_interval > '0'),
    orphan_timeout interval NOT NULL CHECK (orphan_timeout > '0'),
    readers integer NOT NULL CHECK (readers > 0),
    busy integer NOT NULL DEFAULT 0 CHECK (busy >= 0),
    draining boolean NOT NULL DEFAULT false,
    queues text[],
    profiles jsonb NOT NULL DEFAULT '{"": 1}',
    destinations text[],
    unconnected jsonb,
    error text,
    error_since timestamptz,
    CHECK ((error IS NULL) = (error_since IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.workers IS
    'Live workers. Unlogged: a heartbeat writes no WAL, and after a crash of the server the table is empty';
COMMENT ON COLUMN mill.workers.id IS 'Random identifier, new at each process start';
COMMENT ON COLUMN mill.workers.session_pid IS
    'Backend of the control session. If it has ended, the worker is probably dead';
COMMENT ON COLUMN mill.workers.session_started_at IS
    'backend_start of session_pid, which distinguishes that backend from a later one with the same pid';
COMMENT ON COLUMN mill.workers.draining IS 'Whether the worker has stopped claiming tasks';
COMMENT ON COLUMN mill.workers.profiles IS 'Number of readers per profile: {"profile": readers}';
COMMENT ON COLUMN mill.workers.error IS
    'Error that an operation of the worker meets again and again, such as recording the end of a task; null: none';
COMMENT ON COLUMN mill.workers.error_since IS 'Time of the first heartbeat that reported an error; null: none';
COMMENT ON COLUMN mill.workers.unconnected IS
    'Logins with readers that cannot open a session: profile, login, numbers of readers and the last error; null: none';
COMMENT ON COLUMN mill.workers.destinations IS 'Destinations of notifications that the worker is configured for';
COMMENT ON COLUMN mill.workers.queues IS 'Queues that the worker serves; null: all queues';
GRANT SELECT, INSERT, UPDATE, DELETE ON mill.workers TO mill_worker;

CREATE OR REPLACE FUNCTION mill.reserved_by_profile()
RETURNS TABLE (worker_id uuid, profile text, reserved integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    percent integer;
BEGIN
    SELECT CASE s.reserved_capacity WHEN 'none' THEN 0 WHEN 'low' THEN 10 WHEN 'medium' THEN 15 ELSE 25 END
        INTO percent FROM mill.settings s;
    IF percent = 0 THEN
        RETURN;
    END IF;
    -- The last worker keeps a reader. Otherwise no task of another priority might run in its queues. Profiles get parts
    -- of the share in proportion to the readers that they can spare. In the order of their ids, workers contribute
    -- these readers until the part of the profile is complete.
    RETURN QUERY SELECT f.id, f.profile, greatest(0, least(f.spare, round(f.share * f.sum_up_to / f.sum_of_all)
            - round(f.share * (f.sum_up_to - f.sum_of_profile) / f.sum_of_all) - f.contributed))::integer
        FROM (SELECT e.*, sum(e.spare) OVER () AS sum_of_all, sum(e.spare) OVER (ORDER BY e.profile) AS sum_up_to,
                sum(e.spare) OVER (PARTITION BY e.profile) AS sum_of_profile,
                sum(e.spare) OVER (PARTITION BY e.profile ORDER BY e.id) - e.spare AS contributed,
                least(sum(e.spare) OVER (), ceil(sum(e.readers) OVER () * percent / 100.0)) AS share
            FROM (SELECT w.id, p.key COLLATE "C" AS profile, p.value::integer AS readers,
                    p.value::integer - (lead(w.id) OVER (PARTITION BY p.key COLLATE "C", w.queues ORDER BY w.id)
                        IS NULL)::integer AS spare
                FROM mill.workers w, jsonb_each_text(w.profiles) AS p WHERE NOT w.draining) AS e) AS f
        WHERE f.spare > 0;
END
$$;
COMMENT ON FUNCTION mill.reserved_by_profile IS
    'Returns how many readers of each profile of each worker run only tasks of priority reserved. All workers compute '
    'these numbers from the same table and therefore agree. Of the workers that serve the same queues, the last one '
    'keeps one reader of each of its profiles for other tasks';
GRANT EXECUTE ON FUNCTION mill.reserved_by_profile TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.reserved_readers(worker_id uuid) RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(sum(r.reserved), 0)::integer FROM mill.reserved_by_profile() r
    WHERE r.worker_id = reserved_readers.worker_id
$$;
COMMENT ON FUNCTION mill.reserved_readers IS
    'Returns how many readers of a worker run only tasks of priority reserved, see mill.reserved_by_profile';
GRANT EXECUTE ON FUNCTION mill.reserved_readers TO mill_worker, mill_viewer;

-- Returns all backends at once, so that a query over any number of workers reads pg_stat_activity once.
CREATE OR REPLACE FUNCTION mill.live_backends() RETURNS TABLE (pid integer, started_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.pid, a.backend_start FROM pg_stat_activity a WHERE a.datname = current_database()
$$;
COMMENT ON FUNCTION mill.live_backends IS
    'Returns the backends of this database: a worker whose control session is not among them has lost it. started_at: '
    'null if the server hides it from mill_owner';
GRANT EXECUTE ON FUNCTION mill.live_backends TO mill_worker, mill_viewer;

CREATE TABLE IF NOT EXISTS mill.worker_starts (
    id uuid PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT now(),
    pid integer NOT NULL,
    host text NOT NULL,
    version text NOT NULL,
    schema_version integer NOT NULL
);
COMMENT ON TABLE mill.worker_starts IS
    'One row per worker process. Rows outlive their process, so that history can name the worker of an attempt';
COMMENT ON COLUMN mill.worker_starts.version IS 'Version of pgmill';
COMMENT ON COLUMN mill.worker_starts.schema_version IS 'Version of the schema that the worker was built for';
GRANT SELECT, INSERT ON mill.worker_starts TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.cancel_requests (
    task_id bigint PRIMARY KEY,
    requested_at timestamptz NOT NULL DEFAULT now(),
    requested_by text NOT NULL DEFAULT session_user
);
COMMENT ON TABLE mill.cancel_requests IS
    'Requests to cancel a running task. Separate from mill.tasks, because an update of a running task''s row would '
    'make the completion of a REPEATABLE READ task fail';
REVOKE INSERT, UPDATE, DELETE ON mill.cancel_requests FROM mill_worker;
GRANT SELECT ON mill.cancel_requests TO mill_worker;

CREATE UNLOGGED TABLE IF NOT EXISTS mill.progress (
    task_id bigint PRIMARY KEY,
    worker_id uuid NOT NULL,
    attempt integer NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    percent double precision CONSTRAINT percent_range CHECK (percent BETWEEN 0 AND 100),
    message text,
    notices jsonb
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.progress IS
    'Progress that running tasks report, written by their workers about once a second. Separate from mill.tasks, '
    'because an update of a running task''s row would make the completion of a REPEATABLE READ task fail. '
    'mill.running ignores rows of finished attempts';
COMMENT ON COLUMN mill.progress.percent IS 'Percentage from the last notice of the form progress: 40% loading';
COMMENT ON COLUMN mill.progress.message IS 'Text after the percentage of that notice';
COMMENT ON COLUMN mill.progress.notices IS 'Last notices of any other form, newest last';
GRANT SELECT, INSERT, UPDATE, DELETE ON mill.progress TO mill_worker;

-- schema/13_limits.sql ----------------------------------------------------------------------------

-- Limits of a task: which ones apply, and the creation of missing ones.
--
-- A default limit of a concurrency key and the limit of a group within a run are rows that somebody has to insert. A
-- transaction that enqueues does not: two of them that use the same new limits in opposite order would wait for each
-- other, and everybody else for them. It writes a number that is not above 0 in place of the id, and the task is
-- blocked. The session that grants permits creates the limit, in a short transaction.

CREATE OR REPLACE FUNCTION mill.required_limits(queue text, group_name text, run_id bigint,
    concurrency_key text, concurrency integer DEFAULT NULL) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    chain bigint[] := '{}';
    found_id bigint;
    found_max integer;
    found_group mill.groups;
BEGIN
    -- FOR KEY SHARE prevents the removal of these rows until the task is visible, and conflicts with nothing else. A
    -- limit that another session is removing counts as missing, so that nothing waits for it.
    IF concurrency_key IS NOT NULL THEN
        SELECT l.id, l.max_running INTO found_id, found_max FROM mill.limits l
            WHERE l.kind = 'key' AND l.name = concurrency_key AND l.run_id = 0 FOR KEY SHARE SKIP LOCKED;
        IF concurrency <> found_max THEN
            RAISE EXCEPTION 'concurrency key "%" allows % tasks at once, not %', concurrency_key, found_max,
                concurrency USING ERRCODE = '22023',
                HINT = format('To change it for all tasks of the key: pgmill limit set %s --max-running %s',
                    concurrency_key, concurrency);
        ELSIF concurrency < 0 THEN
            RAISE EXCEPTION 'concurrency is %; it must not be negative', concurrency USING ERRCODE = '22023';
        END IF;
        chain := chain || coalesce(found_id, -coalesce(concurrency, 1));
    ELSIF concurrency IS NOT NULL THEN
        RAISE EXCEPTION 'concurrency requires a concurrency key' USING ERRCODE = '22023';
    END IF;
    IF group_name IS NOT NULL THEN
        SELECT g.* INTO found_group FROM mill.groups g WHERE g.name = group_name FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no group "%"', group_name USING ERRCODE = '22023',
                HINT = 'Create it with pgmill group set, or SELECT mill.set_group(…).';
        END IF;
        IF found_group.requires_permit THEN
            SELECT l.id INTO found_id FROM mill.limits l WHERE l.kind = 'group'
                AND l.name = group_name AND l.run_id = coalesce(run_id, 0) FOR KEY SHARE SKIP LOCKED;
            chain := chain || coalesce(found_id, 0);
        END IF;
    END IF;
    SELECT l.id INTO found_id FROM mill.limits l
        WHERE l.kind = 'queue' AND l.name = queue AND l.run_id = 0 AND l.requires_permit FOR KEY SHARE SKIP LOCKED;
    IF FOUND THEN
        chain := chain || found_id;
    END IF;
    RETURN nullif(chain, '{}');
END
$$;
COMMENT ON FUNCTION mill.required_limits IS
    'Returns the ids of the limits that apply to a task with these properties, in the order in which the task '
    'acquires their permits; null: no limit applies. A number that is not above 0 stands for a limit that does not '
    'exist yet; for that of the concurrency key, it is the negated maximum of running tasks';

CREATE OR REPLACE FUNCTION mill.create_limits(task_ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    kinds mill.limit_kind[];
    names text[];
    runs bigint[];
    maxima integer[];
    n integer;
BEGIN
    -- Of tasks with different maxima, the first one decides.
    SELECT array_agg(w.kind), array_agg(w.name), array_agg(w.run_id), array_agg(w.max_running)
        INTO kinds, names, runs, maxima
        FROM (SELECT DISTINCT ON (u.kind, u.name, u.run_id) u.* FROM mill.tasks t CROSS JOIN LATERAL (VALUES
                ('key'::mill.limit_kind, t.concurrency_key::text, 0::bigint, CASE WHEN t.limits[1] <= 0
                    THEN -t.limits[1] ELSE 1 END),
                ('group', (SELECT g.name::text FROM mill.groups g WHERE g.name = t.group_name AND g.requires_permit),
                    coalesce(t.run_id, 0), NULL)) AS u(kind, name, run_id, max_running)
            WHERE t.id = ANY (task_ids) AND u.name IS NOT NULL
            ORDER BY u.kind, u.name, u.run_id, t.id) AS w
        WHERE NOT EXISTS (SELECT FROM mill.limits l WHERE l.kind = w.kind AND l.name = w.name AND l.run_id = w.run_id);
    IF kinds IS NULL THEN
        RETURN;
    END IF;
    BEGIN
        -- In one order, so that sessions do not wait for each other in a circle.
        INSERT INTO mill.limits (kind, name, run_id, max_running)
            SELECT w.* FROM unnest(kinds, names, runs, maxima) AS w(kind, name, run_id, max_running)
            ORDER BY w.kind, w.name, w.run_id ON CONFLICT DO NOTHING;
        RETURN;
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END;
    -- Up to 30, because many subtransactions make each snapshot of the server more expensive. In a random order, so
    -- that the next call tries others.
    PERFORM set_config('lock_timeout', '10ms', true);
    FOR n IN SELECT i FROM generate_subscripts(kinds, 1) AS i ORDER BY random() LIMIT 30 LOOP
        BEGIN
            INSERT INTO mill.limits (kind, name, run_id, max_running)
                VALUES (kinds[n], names[n], runs[n], maxima[n]) ON CONFLICT DO NOTHING;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.create_limits IS
    'Creates the limits of concurrency keys and groups that these tasks need and that do not exist. Leaves out limits '
    'that another transaction is creating or removing. In that case, it creates some of the others only';

CREATE OR REPLACE FUNCTION mill.renew_chains(missing bigint[], OUT renewed integer, OUT waited_for bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    found_ids bigint[];
    task mill.tasks;
    chain bigint[];
BEGIN
    -- A range of ids and the order leave only the index of blocked tasks.
    found_ids := ARRAY(
        (SELECT t.id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id <= 0
        ORDER BY t.blocking_limit_id, t.priority, t.id LIMIT 1000)
        UNION ALL
        SELECT head.id FROM unnest(missing) AS m (id) CROSS JOIN LATERAL (
            SELECT t.id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id = m.id
            ORDER BY t.priority, t.id LIMIT 1000) AS head);
    renewed := 0;
    PERFORM mill.create_limits(found_ids) WHERE found_ids <> '{}';
    FOR task IN SELECT t.* FROM mill.tasks t WHERE t.id = ANY (found_ids) AND t.state = 'blocked'
            AND (t.blocking_limit_id <= 0 OR t.blocking_limit_id = ANY (missing))
        ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        chain := mill.required_limits(task.queue, task.group_name, task.run_id, task.concurrency_key);
        CONTINUE WHEN 0 >= ANY (chain);
        PERFORM mill.release_permits(ARRAY[task.id], NULL);
        UPDATE mill.tasks t SET limits = chain, blocking_limit_id = chain[1], start_by = NULL,
                state = CASE WHEN chain IS NULL THEN 'pending' ELSE 'blocked' END::mill.state
            WHERE t.id = task.id;
        waited_for := array_append(waited_for, chain[1]);
        renewed := renewed + 1;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.renew_chains IS
    'Gives blocked tasks the limits that apply to them now, if they wait for a limit that does not exist (blocked -> '
    'blocked | pending): one that has to be created, up to 1000 tasks; or one of these that was removed, such as that '
    'of a run that has ended, up to 1000 tasks of each. renewed: number of tasks. waited_for: limits for which they '
    'wait now';

CREATE OR REPLACE FUNCTION mill.lock_group(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- As in mill.required_limits: prevents the removal of the group until its user is visible.
    PERFORM FROM mill.groups g WHERE g.name = lock_group.name FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no group "%"', name USING ERRCODE = '22023',
            HINT = 'Create it with pgmill group set, or SELECT mill.set_group(…).';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.lock_group IS
    'Prevents the removal of a group until the end of the transaction. Raises an error if the group does not exist';

CREATE OR REPLACE FUNCTION mill.has_group_permit(group_name text, limits bigint[]) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM mill.groups g WHERE g.name = has_group_permit.group_name AND g.requires_permit)
        OR EXISTS (SELECT FROM mill.limits l WHERE l.id = ANY (has_group_permit.limits) AND l.kind = 'group');
END
$$;
COMMENT ON FUNCTION mill.has_group_permit IS
    'Returns whether a pending task of the group has the permit that the group requires';
GRANT EXECUTE ON FUNCTION mill.has_group_permit TO mill_worker;

-- schema/14_permits.sql ---------------------------------------------------------------------------

-- Permits: blocked <-> pending.
--
-- A task with limits is blocked until it holds a permit of each of its limits. A claim takes pending
-- tasks without counting anything, so tasks without limits have no overhead. A permit is granted under a
-- lock on the row of its limit. Counting the running tasks in each claim could not enforce a limit,
-- because concurrent claims do not see each other's tasks.
--
-- A permit ends in the transaction in which the task stops being pending or running, without that lock.
-- A grant locks limits in the order (kind, id), and locks tasks only with SKIP LOCKED.

CREATE TABLE IF NOT EXISTS mill.permits (
    limit_id bigint NOT NULL,
    task_id bigint NOT NULL,
    counts_until timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
-- A task can have several starts that count towards one limit, so no set of columns identifies a row.
ALTER TABLE mill.permits REPLICA IDENTITY FULL;
COMMENT ON TABLE mill.permits IS
    'Permits. A task has one row for each limit that has admitted it. For a limit with a rate, the row of an ended '
    'attempt remains as long as its start counts towards the rate';
COMMENT ON COLUMN mill.permits.counts_until IS
    'Null while the task holds the permit. After the end of the attempt: time until which its start counts towards '
    'the rate';
CREATE INDEX IF NOT EXISTS permits_limit ON mill.permits (limit_id);
CREATE INDEX IF NOT EXISTS permits_task ON mill.permits (task_id) WHERE counts_until IS NULL;

CREATE UNLOGGED TABLE IF NOT EXISTS mill.limit_reconciliation (
    at timestamptz NOT NULL,
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    pause interval NOT NULL DEFAULT '1 second'
);
COMMENT ON TABLE mill.limit_reconciliation IS
    'Time at which the fleet last reconciled all limits. Unlogged, so the table is empty after a crash of the server';
COMMENT ON COLUMN mill.limit_reconciliation.pause IS
    'Time from then until the next reconciliation: nine times as long as the last one took, but 1 to 10 seconds';

CREATE OR REPLACE FUNCTION mill.release_permits(task_ids bigint[], started_at timestamptz[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE mill.permits p
        SET counts_until = started_at[array_position(task_ids, p.task_id)] + l.window_length
        FROM mill.limits l
        WHERE p.task_id = ANY (task_ids) AND p.counts_until IS NULL AND l.id = p.limit_id
            AND started_at[array_position(task_ids, p.task_id)] + l.window_length > clock_timestamp();
    DELETE FROM mill.permits p WHERE p.task_id = ANY (task_ids) AND p.counts_until IS NULL;
END
$$;
COMMENT ON FUNCTION mill.release_permits IS
    'Releases the permits of tasks that are no longer pending or running. The start of such a task continues to count '
    'towards a rate until the window of the rate has passed. started_at: null for a task that never started';
GRANT EXECUTE ON FUNCTION mill.release_permits TO mill_worker;

CREATE OR REPLACE FUNCTION mill.await_limit(limit_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
BEGIN
    PERFORM FROM mill.limits l WHERE l.id = limit_id FOR NO KEY UPDATE;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION mill.await_limit IS
    'Locks the row of a limit that another session has locked. Returns false if it cannot get the lock within 50 ms, '
    'for example because a transaction that has changed the limit is still open. The caller holds the locks of other '
    'limits meanwhile';

CREATE OR REPLACE FUNCTION mill.on_hold(OUT queues text[], OUT targets text[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (SELECT array_agg(q.name::text) FROM mill.queues q WHERE q.paused OR q.held_back IS NOT NULL),
        (SELECT array_agg(c.name::text) FROM mill.target_checks c WHERE c.held_back IS NOT NULL)
$$;
COMMENT ON FUNCTION mill.on_hold IS
    'Returns the queues and the targets that are paused or held back; null if there are none. Their tasks get no '
    'permits, and mill.reconcile_limits revokes those that they have, because other tasks can use them';

-- The steps of mill.grant_permits have its settings and its search_path: setting them again in each step would make the
-- grant of a permit slower.
CREATE OR REPLACE FUNCTION mill.free_places(limit_id bigint, OUT free integer, OUT open_until timestamptz,
    OUT next_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
    at CONSTANT timestamptz := clock_timestamp();
    terms mill.effective_limits;
    period record;
BEGIN
    SELECT t.* INTO terms FROM mill.effective_limits t WHERE t.id = limit_id;
    IF NOT FOUND THEN
        -- The limit was removed before the caller could lock it.
        free := 0;
        RETURN;
    END IF;
    DELETE FROM mill.permits p WHERE p.limit_id = terms.id AND p.counts_until <= at;
    SELECT least(1000, terms.max_running - count(*) FILTER (WHERE p.counts_until IS NULL))
        INTO free FROM mill.permits p WHERE p.limit_id = terms.id;
    IF terms.window_starts IS NOT NULL THEN
        -- A start that counts for longer is from before the clock was set back, or before the rate was changed.
        UPDATE mill.permits p SET counts_until = at + terms.window_length
            WHERE p.limit_id = terms.id AND p.counts_until > at + terms.window_length;
        -- A permit of a task that has not started always counts; a start counts for one window.
        SELECT least(free, terms.window_starts - count(*) FILTER (WHERE s.until > at)),
            least(at + terms.window_length, min(s.until) FILTER (WHERE s.until > at))
            INTO free, next_at
            FROM (SELECT coalesce(p.counts_until, CASE WHEN t.state = 'running'
                    THEN t.claimed_at + terms.window_length ELSE 'infinity' END) AS until
                FROM mill.permits p LEFT JOIN mill.tasks t ON t.id = p.task_id
                WHERE p.limit_id = terms.id) AS s;
    END IF;
    SELECT a.open, a.until INTO period FROM mill.active_period(terms.opens, terms.closes, terms.zone, at) AS a;
    IF period.open THEN
        open_until := period.until;
    ELSE
        free := 0;
        next_at := least(next_at, period.until);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.free_places IS
    'Deletes the starts that no longer count towards a limit, and returns how many permits it can grant (free; up to '
    '1000, may be negative). The caller has locked the limit, so that no other session grants its permits. open_until: '
    'end of the active period; null: none. next_at: time at which a rate or an active period frees further permits; '
    'null: never';

CREATE OR REPLACE FUNCTION mill.pick_blocked(limit_id bigint, max_count integer) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    hold record;
BEGIN
    SELECT h.* INTO hold FROM mill.on_hold() AS h;
    RETURN ARRAY(SELECT head.id FROM (
            -- Orders the priorities at random, weighted, as the claim does.
            SELECT w.priority FROM mill.priorities w
            ORDER BY CASE WHEN w.weight > 0 THEN -ln(1 - random()) / w.weight ELSE 'Infinity' END
        ) AS ranked CROSS JOIN LATERAL (
            -- A search for a task that is not on hold reaches the Nth task with a probability of 1000 / N. So a task
            -- is found however many are before it, and an average search remains short.
            SELECT coalesce(CASE WHEN num_nonnulls(hold.queues, hold.targets) > 0 THEN (
                SELECT t.id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id = limit_id
                    AND t.priority >= ranked.priority AND t.priority <= ranked.priority
                ORDER BY t.priority, t.id OFFSET (1000 / (1 - random()))::bigint LIMIT 1) END,
                9223372036854775807) AS id
        ) AS horizon CROSS JOIN LATERAL (
            -- As in the claim, a range of one priority leaves only the index of blocked tasks. With an equation, the
            -- primary key would give the order too.
            SELECT t.id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id = limit_id
                AND t.priority >= ranked.priority AND t.priority <= ranked.priority AND t.id < horizon.id
                AND (t.queue = ANY (hold.queues)) IS NOT TRUE AND (t.run_as = ANY (hold.targets)) IS NOT TRUE
            ORDER BY t.priority, t.id LIMIT max_count FOR NO KEY UPDATE SKIP LOCKED
        ) AS head LIMIT max_count);
END
$$;
COMMENT ON FUNCTION mill.pick_blocked IS
    'Locks up to max_count tasks that wait for a permit of this limit, and returns their ids. Leaves out tasks that '
    'are on hold, and tasks that another session has locked';

CREATE OR REPLACE FUNCTION mill.give_permits(limit_id bigint, task_ids bigint[], open_until timestamptz,
    OUT passed integer, OUT onward bigint[])
LANGUAGE plpgsql AS $$
BEGIN
    WITH permitted AS (
        INSERT INTO mill.permits (limit_id, task_id) SELECT give_permits.limit_id, i FROM unnest(task_ids) AS i
    ), moved AS (
        UPDATE mill.tasks t SET
            blocking_limit_id = t.limits[array_position(t.limits, give_permits.limit_id) + 1],
            state = CASE WHEN t.limits[array_position(t.limits, give_permits.limit_id) + 1] IS NULL
                THEN 'pending'::mill.state ELSE 'blocked' END,
            start_by = coalesce(open_until, t.start_by)
        WHERE t.id = ANY (task_ids)
        RETURNING t.blocking_limit_id
    )
    SELECT count(*) FILTER (WHERE m.blocking_limit_id IS NULL), array_agg(DISTINCT m.blocking_limit_id)
            FILTER (WHERE m.blocking_limit_id IS NOT NULL)
        INTO passed, onward FROM moved m;
END
$$;
COMMENT ON FUNCTION mill.give_permits IS
    'Gives locked tasks a permit of this limit: blocked -> pending | blocked. passed: number of tasks that became '
    'pending. onward: limits of a later kind for which the others wait now. open_until: time until which the tasks '
    'have to start; null: no limit';

CREATE OR REPLACE FUNCTION mill.grant_permits(limit_ids bigint[], OUT granted integer, OUT next_in interval)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    kind_now mill.limit_kind;
    limit_id bigint;
    may_wait boolean := true;
    places record;
    next_at timestamptz;
    picked bigint[];
    given record;
BEGIN
    granted := 0;
    -- Asynchronous commit is safe here, as for a claim: WAL is written in order, so an effect of this
    -- permit survives a crash only if the permit does.
    PERFORM set_config('synchronous_commit', 'off', true);
    FOREACH kind_now IN ARRAY enum_range(NULL::mill.limit_kind) LOOP
        FOR limit_id IN SELECT l.id FROM mill.limits l
            WHERE l.id = ANY (limit_ids) AND l.kind = kind_now ORDER BY l.id
        LOOP
            -- The order leaves only the index of blocked tasks.
            CONTINUE WHEN (SELECT t.id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id = limit_id
                ORDER BY t.priority, t.id LIMIT 1) IS NULL;
            PERFORM FROM mill.limits l WHERE l.id = limit_id FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                -- Most often another session grants permits of this limit and is about to commit. One that keeps
                -- the lock delays the other limits only once; the next poll finds the tasks again.
                may_wait := may_wait AND mill.await_limit(limit_id);
                CONTINUE WHEN NOT may_wait;
            END IF;
            -- The lock excludes other sessions that grant permits, so each of the next statements sees their grants.
            places := mill.free_places(limit_id);
            next_at := least(next_at, places.next_at);
            CONTINUE WHEN places.free <= 0;
            picked := mill.pick_blocked(limit_id, places.free);
            CONTINUE WHEN picked = '{}';
            given := mill.give_permits(limit_id, picked, places.open_until);
            granted := granted + given.passed;
            -- These tasks now wait for limits of a later kind, which the outer loop has not reached yet.
            limit_ids := limit_ids || given.onward;
        END LOOP;
    END LOOP;
    next_in := next_at - clock_timestamp();
END
$$;
COMMENT ON FUNCTION mill.grant_permits IS
    'Grants the free permits of these limits, up to 1000 per limit. While queues or targets are on hold, a call '
    'reaches the Nth task of a limit and priority with a probability of 1000 / N. '
    'granted: number of tasks that became pending. '
    'next_in: time until a rate or an active period frees further permits';
GRANT EXECUTE ON FUNCTION mill.grant_permits TO mill_worker;

CREATE OR REPLACE FUNCTION mill.limits_waited_for(after_limit bigint, max_count integer) RETURNS SETOF bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    -- A loose index scan, one probe per limit.
    WITH RECURSIVE waited (id) AS (
        (SELECT t.blocking_limit_id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id > after_limit
         ORDER BY t.blocking_limit_id LIMIT 1)
        UNION ALL
        SELECT next.blocking_limit_id FROM waited w CROSS JOIN LATERAL (
            SELECT t.blocking_limit_id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id > w.id
            ORDER BY t.blocking_limit_id LIMIT 1) AS next
    )
    SELECT w.id FROM waited w LIMIT max_count
$$;
COMMENT ON FUNCTION mill.limits_waited_for IS
    'Returns the limits for which blocked tasks wait next, in the order of their ids. max_count: null for all';

-- Up to 1000 limits and those of up to 1000 tasks, because the call holds their locks until the end of the transaction.
CREATE OR REPLACE FUNCTION mill.grant_waiting_permits(after_limit bigint, OUT granted integer, OUT next_in interval,
    OUT last_limit bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    waited_for bigint[];
    missing bigint[];
    chains record;
BEGIN
    -- A filter, not a condition: without statistics, a scan of the index permits_task seems cheaper than a probe.
    SELECT CASE WHEN count(*) = 1000 THEN max(w.id) END, array_agg(w.id) FILTER (WHERE l.id IS NULL),
            array_agg(w.id) FILTER (WHERE l.id IS NOT NULL
            AND (l.max_running IS NULL OR l.max_running > (SELECT count(*) FILTER (WHERE p.counts_until IS NULL)
                FROM mill.permits p WHERE p.limit_id = w.id)))
        INTO last_limit, missing, waited_for
        FROM mill.limits_waited_for(after_limit, 1000) AS w (id) LEFT JOIN mill.effective_limits l ON l.id = w.id;
    SELECT c.* INTO chains FROM mill.renew_chains(missing) AS c;
    SELECT g.granted, g.next_in INTO granted, next_in
        FROM mill.grant_permits(coalesce(waited_for || chains.waited_for, '{}')) AS g;
    IF chains.renewed >= 1000 THEN
        last_limit := coalesce(last_limit, 0);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.grant_waiting_permits(bigint) IS
    'Calls mill.renew_chains, and mill.grant_permits for the limits after this one that have waiting tasks and free '
    'capacity. Checks up to 1000 limits with waiting tasks. last_limit: the last of them, for the next call; 0: the '
    'next call begins with the first limit; null: there are no more';
GRANT EXECUTE ON FUNCTION mill.grant_waiting_permits(bigint) TO mill_worker;

CREATE OR REPLACE FUNCTION mill.grant_waiting_permits(OUT granted integer, OUT next_in interval)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    checked bigint := 0;
    part record;
BEGIN
    granted := 0;
    WHILE checked IS NOT NULL LOOP
        SELECT g.* INTO part FROM mill.grant_waiting_permits(checked) AS g;
        granted := granted + part.granted;
        next_in := least(next_in, part.next_in);
        checked := part.last_limit;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.grant_waiting_permits() IS
    'Calls mill.grant_permits for every limit that has waiting tasks and free capacity';
GRANT EXECUTE ON FUNCTION mill.grant_waiting_permits() TO mill_worker;

-- The settings and the first CTE force a probe of permits_limit and lookups of tasks by primary key.
CREATE OR REPLACE FUNCTION mill.revoke_permits(limit_ids bigint[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    revoked bigint[];
BEGIN
    PERFORM FROM mill.limits l WHERE l.id = ANY (limit_ids) ORDER BY l.kind, l.id FOR NO KEY UPDATE;
    WITH granted AS MATERIALIZED (
        SELECT p.task_id, p.counts_until FROM mill.permits p WHERE p.limit_id = ANY (limit_ids)
    ), waiting AS MATERIALIZED (
        SELECT t.id FROM mill.tasks t JOIN granted g ON g.task_id = t.id
        -- A blocked task waits for a later limit of its chain, and does not return to these limits by itself.
        WHERE g.counts_until IS NULL AND t.state IN ('pending', 'blocked') ORDER BY t.id FOR NO KEY UPDATE OF t
    ), back AS (
        UPDATE mill.tasks t SET state = 'blocked', blocking_limit_id = t.limits[1], start_by = NULL
        FROM waiting WHERE t.id = waiting.id AND t.state IN ('pending', 'blocked') RETURNING t.id
    )
    SELECT array_agg(b.id) INTO revoked FROM back b;
    PERFORM mill.release_permits(revoked, NULL) WHERE revoked IS NOT NULL;
    RETURN coalesce(cardinality(revoked), 0);
END
$$;
COMMENT ON FUNCTION mill.revoke_permits IS
    'Makes tasks wait again that have a permit of these limits and have not started (pending, blocked -> blocked). '
    'Returns the number of tasks';

CREATE OR REPLACE FUNCTION mill.block_pending(queue text, group_name text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    slipped bigint[];
    task mill.tasks;
    chain bigint[];
    blocked integer := 0;
BEGIN
    -- Two statements, each with one index range. One statement with both conditions would scan the table.
    IF EXISTS (SELECT FROM mill.limits l
        WHERE l.kind = 'queue' AND l.name = block_pending.queue AND l.requires_permit)
    THEN
        SELECT array_agg(t.id) INTO slipped FROM mill.tasks t
            WHERE t.state = 'pending' AND t.queue = block_pending.queue
                AND NOT EXISTS (SELECT FROM mill.limits l WHERE l.id = ANY (t.limits) AND l.kind = 'queue');
    ELSIF EXISTS (SELECT FROM mill.groups g WHERE g.name = block_pending.group_name AND g.requires_permit) THEN
        SELECT array_agg(t.id) INTO slipped FROM mill.tasks t
            WHERE t.state = 'pending' AND t.group_name = block_pending.group_name
                AND NOT EXISTS (SELECT FROM mill.limits l WHERE l.id = ANY (t.limits) AND l.kind = 'group');
    END IF;
    FOR task IN SELECT t.* FROM mill.tasks t WHERE t.id = ANY (slipped) AND t.state = 'pending'
        ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        chain := mill.required_limits(task.queue, task.group_name, task.run_id, task.concurrency_key);
        CONTINUE WHEN chain IS NULL;
        PERFORM mill.release_permits(ARRAY[task.id], NULL) WHERE task.limits IS NOT NULL;
        UPDATE mill.tasks t SET state = 'blocked', limits = chain, blocking_limit_id = chain[1], start_by = NULL
            WHERE t.id = task.id;
        blocked := blocked + 1;
    END LOOP;
    RETURN blocked;
END
$$;
COMMENT ON FUNCTION mill.block_pending IS
    'Makes pending tasks of a queue or a group wait for a permit (pending -> blocked) if they were enqueued before '
    'the limit was set. Until then, claims skip these tasks. Returns the number of tasks';

-- Loose index scans, one probe per queue and per group with pending tasks, so that the cost does not depend on the
-- number of limits and groups.
CREATE OR REPLACE FUNCTION mill.pending_without_permits() RETURNS TABLE (queue text, group_name text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    WITH RECURSIVE pending (queue) AS (
        (SELECT t.queue FROM mill.tasks t WHERE t.state = 'pending' ORDER BY t.queue LIMIT 1)
        UNION ALL
        SELECT next.queue FROM pending p CROSS JOIN LATERAL (SELECT t.queue FROM mill.tasks t
            WHERE t.state = 'pending' AND t.queue > p.queue ORDER BY t.queue LIMIT 1) AS next
    ), grouped (name) AS (
        (SELECT t.group_name FROM mill.tasks t WHERE t.state = 'pending' AND t.group_name IS NOT NULL
         ORDER BY t.group_name LIMIT 1)
        UNION ALL
        SELECT next.group_name FROM grouped p CROSS JOIN LATERAL (SELECT t.group_name FROM mill.tasks t
            WHERE t.state = 'pending' AND t.group_name > p.name ORDER BY t.group_name LIMIT 1) AS next
    )
    -- LIMIT makes each row a probe. In a join, the planner may compare all queues with all limits or tasks.
    SELECT p.queue::text, NULL FROM pending p
        CROSS JOIN LATERAL (SELECT l.id FROM mill.limits l
            WHERE l.kind = 'queue' AND l.name = p.queue AND l.run_id = 0 AND l.requires_permit LIMIT 1) AS l
        CROSS JOIN LATERAL (SELECT FROM mill.tasks t WHERE t.state = 'pending' AND t.queue = p.queue
            AND NOT ARRAY[l.id] <@ coalesce(t.limits, '{}') LIMIT 1) AS t
    UNION ALL
    SELECT NULL, p.name::text FROM grouped p
        CROSS JOIN LATERAL (SELECT FROM mill.groups g WHERE g.name = p.name AND g.requires_permit LIMIT 1) AS g
        CROSS JOIN LATERAL (SELECT FROM mill.tasks t WHERE t.state = 'pending' AND t.group_name = p.name
            AND NOT mill.has_group_permit(t.group_name, t.limits) LIMIT 1) AS t
$$;
COMMENT ON FUNCTION mill.pending_without_permits IS
    'Returns the queues and the groups with a pending task that lacks the permit of the queue or the group, for '
    'mill.block_pending: one of both in each row';

CREATE OR REPLACE FUNCTION mill.admit_running() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task mill.tasks;
    chain bigint[];
BEGIN
    FOR task IN SELECT t.* FROM mill.tasks t
        WHERE t.state = 'running' AND (
            EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = t.queue AND l.run_id = 0
                AND l.requires_permit AND l.id <> ALL (coalesce(t.limits, '{}')))
            OR t.group_name IS NOT NULL AND NOT mill.has_group_permit(t.group_name, t.limits))
        -- Skips tasks that are about to end.
        ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        PERFORM mill.create_limits(ARRAY[task.id]);
        chain := mill.required_limits(task.queue, task.group_name, task.run_id, task.concurrency_key);
        -- Another transaction is creating a limit. A later call admits the task.
        CONTINUE WHEN 0 >= ANY (chain);
        INSERT INTO mill.permits (limit_id, task_id)
            SELECT c.id, task.id FROM unnest(chain) AS c (id) WHERE c.id <> ALL (coalesce(task.limits, '{}'));
        UPDATE mill.tasks t SET limits = chain WHERE t.id = task.id;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.admit_running IS
    'Gives running tasks the permits of limits that were set after they had started, so that they count. A limit may '
    'then have more permits than it allows, and grants none until enough of these tasks have ended';

CREATE OR REPLACE FUNCTION mill.correct_starts() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET jit = off AS $$
    -- Only tasks with a rate: a change of a running task can abort it in isolation level SERIALIZABLE. Skips tasks that
    -- are about to end.
    UPDATE mill.tasks t SET claimed_at = clock_timestamp()
        WHERE t.state = 'running' AND t.id = ANY (ARRAY(SELECT r.id FROM mill.tasks r
            WHERE r.state = 'running' AND r.claimed_at > clock_timestamp() AND EXISTS (SELECT FROM mill.limits l
                WHERE l.id = ANY (r.limits) AND l.window_starts IS NOT NULL)
            ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED))
$$;
COMMENT ON FUNCTION mill.correct_starts IS
    'Changes starts in the future, which are from before the clock was set back, to the current time. They would count '
    'towards a rate until the clock has caught up';

CREATE OR REPLACE FUNCTION mill.enforce_limits(limit_ids bigint[], queue text, group_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- mill.revoke_permits locks the limits first. So no other session grants their permits in this transaction.
    PERFORM mill.revoke_permits(limit_ids);
    -- A claim in progress does not see the new limit, and mill.block_pending skips its task. These statements wait
    -- until the claim has ended; mill.admit_running then counts the task.
    PERFORM FROM mill.tasks t WHERE t.state = 'pending' AND t.queue = enforce_limits.queue
        AND NOT limit_ids && coalesce(t.limits, '{}') ORDER BY t.id FOR NO KEY UPDATE;
    PERFORM FROM mill.tasks t WHERE t.state = 'pending' AND t.group_name = enforce_limits.group_name
        AND NOT limit_ids && coalesce(t.limits, '{}') ORDER BY t.id FOR NO KEY UPDATE;
    PERFORM mill.block_pending(queue, group_name);
    PERFORM mill.admit_running();
    PERFORM pg_notify('mill', 'sweep');
END
$$;
COMMENT ON FUNCTION mill.enforce_limits IS
    'Applies changed limits to existing tasks: revokes the permits of tasks that have not started, and counts the '
    'running ones. Workers then grant permits under the new limits';

CREATE OR REPLACE FUNCTION mill.reconcile_limits() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms'
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    began CONSTANT timestamptz := clock_timestamp();
    closed bigint[];
    hold record;
    kept bigint[];
BEGIN
    -- At most one worker at a time continues, and for the whole fleet at most once a second.
    INSERT INTO mill.limit_reconciliation (at) VALUES ('-infinity') ON CONFLICT DO NOTHING;
    -- A time in the future shows that the clock was set back.
    PERFORM FROM mill.limit_reconciliation r
        WHERE r.at NOT BETWEEN clock_timestamp() - r.pause AND clock_timestamp()
        FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE mill.limit_reconciliation SET at = clock_timestamp();
    -- Includes tasks whose active period has opened again since. Claims skip a task whose start_by has
    -- passed, so the task needs a new permit.
    SELECT array_agg(DISTINCT l.id) INTO closed
        FROM mill.tasks t JOIN mill.limits l ON l.id = ANY (t.limits) AND l.kind = 'group'
        WHERE t.state = 'pending' AND t.group_name IS NOT NULL AND t.start_by <= clock_timestamp();
    PERFORM mill.revoke_permits(closed) WHERE closed IS NOT NULL;
    SELECT h.* INTO hold FROM mill.on_hold() AS h;
    IF num_nonnulls(hold.queues, hold.targets) > 0 THEN
        SELECT array_agg(DISTINCT p.limit_id) INTO kept FROM mill.permits p JOIN mill.tasks t ON t.id = p.task_id
            WHERE p.counts_until IS NULL AND t.state IN ('pending', 'blocked')
                AND (t.queue = ANY (hold.queues) OR t.run_as = ANY (hold.targets));
        PERFORM mill.revoke_permits(kept) WHERE kept IS NOT NULL;
    END IF;
    PERFORM mill.block_pending(p.queue, p.group_name) FROM mill.pending_without_permits() AS p;
    PERFORM mill.admit_running();
    PERFORM mill.correct_starts();
    UPDATE mill.limit_reconciliation SET at = clock_timestamp(),
        pause = least(greatest('1 second', 9 * (clock_timestamp() - began)), '10 seconds');
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.reconcile_limits IS
    'Enforces limits on tasks that were enqueued while a limit was being set, on tasks whose active period has '
    'closed, on tasks that are on hold, and on tasks whose limit was removed. Workers call it before '
    'mill.grant_waiting_permits. The calls of all workers take at most a tenth of the time: one that comes '
    'within limit_reconciliation.pause of the previous one returns false and does nothing';
GRANT EXECUTE ON FUNCTION mill.reconcile_limits TO mill_worker;

-- schema/15_suspects.sql --------------------------------------------------------------------------

-- Suspects: tasks that ran when the server crashed.
--
-- They run one at a time, by which the one that crashes the server is found.
--
-- A crash interrupts all running tasks, and one of them may have caused it. So these tasks, the suspects, get one more
-- limit, which permits one of them at a time. A crash while a suspect holds the permit counts as a crash of this task
-- (tasks.crashes), and of no other. The task is no longer a suspect when an attempt has ended in any other way.

CREATE TABLE IF NOT EXISTS mill.server (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    timeline text NOT NULL DEFAULT substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8),
    crashed_at timestamptz
);
COMMENT ON TABLE mill.server IS 'What the fleet has last seen of the server';
COMMENT ON COLUMN mill.server.timeline IS
    'Timeline of the WAL. Another one after a failover, which is no crash that a task could cause again';
COMMENT ON COLUMN mill.server.crashed_at IS 'Time at which mill.detect_crash has found the last crash';
GRANT SELECT ON mill.server TO mill_worker, mill_viewer;

CREATE UNLOGGED TABLE IF NOT EXISTS mill.uptime (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);
COMMENT ON TABLE mill.uptime IS 'One row. Unlogged, so the table is empty after a crash of the server';
INSERT INTO mill.uptime SELECT WHERE NOT EXISTS (SELECT FROM mill.server) ON CONFLICT DO NOTHING;
INSERT INTO mill.server DEFAULT VALUES ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION mill.detect_crash() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    timeline_now text;
    timeline_before text;
    suspects bigint;
BEGIN
    IF EXISTS (SELECT FROM mill.uptime) THEN
        RETURN;
    END IF;
    -- Other sessions wait here until the suspects are marked.
    INSERT INTO mill.uptime DEFAULT VALUES ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    timeline_now := substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
    SELECT s.timeline INTO timeline_before FROM mill.server s FOR NO KEY UPDATE;
    IF timeline_before <> timeline_now THEN
        UPDATE mill.server SET timeline = timeline_now;
        RETURN;
    END IF;
    UPDATE mill.server SET crashed_at = clock_timestamp();
    INSERT INTO mill.limits (kind, name, max_running, explicit) VALUES ('crash', 'suspects', 1, true)
        ON CONFLICT DO NOTHING;
    SELECT l.id INTO suspects FROM mill.limits l WHERE l.kind = 'crash';
    -- No worker claims before it has registered, and each registration calls this function. So these tasks ran before
    -- the crash, and their sessions are gone. A task in another database is interrupted by crashes of that server.
    UPDATE mill.tasks t SET
            limits = CASE WHEN suspects = ANY (t.limits) THEN t.limits ELSE coalesce(t.limits, '{}') || suspects END,
            crashes = t.crashes + EXISTS (SELECT FROM mill.permits p WHERE p.task_id = t.id
                AND p.counts_until IS NULL AND p.limit_id = suspects)::integer
        WHERE t.id = ANY (ARRAY(SELECT r.id FROM mill.tasks r WHERE r.state = 'running' AND r.receipt IS NULL
            ORDER BY r.id FOR NO KEY UPDATE SKIP LOCKED));
END
$$;
COMMENT ON FUNCTION mill.detect_crash IS
    'Makes the tasks that ran when the server crashed suspects, once after each crash. Workers call it before they '
    'claim tasks; the functions that end or release an attempt which the crash may have interrupted do so, too';
GRANT EXECUTE ON FUNCTION mill.detect_crash TO mill_worker;

CREATE OR REPLACE FUNCTION mill.without_suspicion(limits bigint[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN nullif(array_remove(limits, (SELECT l.id FROM mill.limits l WHERE l.kind = 'crash')), '{}');
END
$$;
COMMENT ON FUNCTION mill.without_suspicion IS
    'Returns the limits of a task that is not suspected to crash the server';

CREATE OR REPLACE VIEW mill.crash_suspects AS
    SELECT t.id, t.queue, t.name, t.state, t.crashes
    FROM mill.limits l CROSS JOIN LATERAL (
        SELECT b.* FROM mill.tasks b WHERE b.state = 'blocked' AND b.blocking_limit_id = l.id
        UNION ALL
        SELECT r.* FROM mill.permits p JOIN mill.tasks r ON r.id = p.task_id
            WHERE p.limit_id = l.id AND p.counts_until IS NULL) AS t
    WHERE l.kind = 'crash';
COMMENT ON VIEW mill.crash_suspects IS
    'Tasks that ran when the server crashed, and wait until they may run alone among them, or do so. crashes: how '
    'often the server has crashed while only this task could be the cause, and how often its worker has died';
GRANT SELECT ON mill.crash_suspects TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.interruptions() RETURNS TABLE (
    attempts bigint, tasks bigint, since timestamptz, sqlstate text, message text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
BEGIN
    RETURN QUERY
        SELECT count(*), count(DISTINCT a.task_id), min(a.finished_at), (array_agg(a.sqlstate))[1],
            (array_agg(a.message))[1]
        FROM (SELECT v.task_id, v.finished_at, v.sqlstate, v.message FROM mill.visible_attempts v
            WHERE v.finished_at > now() - interval '10 minutes' AND v.outcome <> 'succeeded'
                AND v.outcome <> 'cancelled' AND v.outcome = 'interrupted'
            ORDER BY v.finished_at DESC LIMIT 1000) AS a;
EXCEPTION WHEN lock_not_available THEN
    -- What else is wrong is shown while the history is locked, too.
    RETURN QUERY SELECT 0::bigint, 0::bigint, NULL::timestamptz, NULL::text, NULL::text;
END
$$;
COMMENT ON FUNCTION mill.interruptions IS
    'Returns how many attempts of how many tasks the server has interrupted in the last ten minutes, up to 1000 '
    'attempts, since when, and the last error; zero while the history is locked';
GRANT EXECUTE ON FUNCTION mill.interruptions TO mill_viewer;

-- schema/16_watched_lanes.sql ---------------------------------------------------------------------

-- Watched lanes: whether an enqueue has to wake a worker.
--
-- A worker with free readers looks for tasks in these lanes every few milliseconds.
--
-- An enqueue notifies the workers if no worker watches the lane of its task. A worker that has just found a task
-- watches its lanes, so tasks that follow each other closely cause no notification. All that is known about this is the
-- value of a sequence: it is visible at once, and no open transaction keeps its former values or locks it. The sequence
-- is not unlogged, because it could not be read after a failover then. Nothing depends on it: polls find all tasks.
--
-- The bits of the value, from the highest:
--   20  the millisecond at which the value expires, modulo 2^20 (17 minutes)
--   11  the worker that watches, as a number made of its id; 0 after a notification
--   32  the lanes, as a set of hashes

CREATE SEQUENCE IF NOT EXISTS mill.watched_lanes MINVALUE 0 START 0;
COMMENT ON SEQUENCE mill.watched_lanes IS
    'The lanes that a worker watches, or for which the workers have just been notified. A hint: see mill.is_watched';

CREATE OR REPLACE FUNCTION mill.lane_bit(queue text, priority mill.priority, run_as text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN 1::bigint << (hashtext(queue || priority || run_as) & 31);
END
$$;
COMMENT ON FUNCTION mill.lane_bit IS
    'Returns the set of mill.watched_lanes that contains one lane';

CREATE OR REPLACE FUNCTION mill.is_watched(lanes bigint DEFAULT 4294967295) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    watched bigint := pg_sequence_last_value('mill.watched_lanes');
BEGIN
    -- A value that expires later than any does is old.
    RETURN watched & lanes = lanes
        AND ((watched >> 43) - (date_part('epoch', clock_timestamp()) * 1000)::bigint) & 1048575 BETWEEN 1 AND 1000;
END
$$;
COMMENT ON FUNCTION mill.is_watched IS
    'Returns whether a worker watches all of these lanes, or the workers have just been notified';

CREATE OR REPLACE FUNCTION mill.set_watched(lanes bigint, worker bigint, milliseconds integer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM setval('mill.watched_lanes',
        ((((date_part('epoch', clock_timestamp()) * 1000)::bigint + milliseconds) & 1048575) << 43)
            | (worker << 32) | lanes);
END
$$;
COMMENT ON FUNCTION mill.set_watched IS
    'Sets the value of mill.watched_lanes';

CREATE OR REPLACE FUNCTION mill.wake_workers(lanes bigint DEFAULT 4294967295) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    wanted text := coalesce(current_setting('mill.notify', true), '');
BEGIN
    IF mill.is_watched(lanes) THEN
        RETURN;
    END IF;
    -- A transaction with a notification cannot be prepared for a two-phase commit, and cannot commit while the queue of
    -- notifications is full.
    IF wanted = 'off' OR wanted <> 'on' AND current_setting('max_prepared_transactions') <> '0'
        OR pg_notification_queue_usage() > 0.5
    THEN
        RETURN;
    END IF;
    -- The notification follows the commit, and may be lost with the transaction, so it holds for a short time.
    PERFORM mill.set_watched(4294967295, 0, 50), pg_notify('mill', 'work');
END
$$;
COMMENT ON FUNCTION mill.wake_workers IS
    'Notifies the workers after the commit of the transaction, unless a worker watches all of these lanes or the '
    'setting mill.notify is off. By default, does not notify if the server permits prepared transactions, because a '
    'transaction that notifies cannot be prepared';

CREATE OR REPLACE FUNCTION mill.watch_lanes(
    worker uuid, queues text[], priorities text[], run_as text[], milliseconds integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number CONSTANT bigint := greatest(1, hashtext(worker::text) & 2047);
    watching CONSTANT bigint := (pg_sequence_last_value('mill.watched_lanes') >> 32) & 2047;
    lanes CONSTANT bigint := (SELECT bit_or(mill.lane_bit(l.queue, l.priority::mill.priority, l.run_as))
        FROM unnest(queues, priorities, watch_lanes.run_as) AS l (queue, priority, run_as));
BEGIN
    IF lanes IS NULL THEN
        IF watching IN (number, 0) THEN
            PERFORM mill.set_watched(0, 0, 0);
        END IF;
        RETURN false;
    END IF;
    IF watching <> number AND watching <> 0 AND mill.is_watched(lanes) THEN
        RETURN false;
    END IF;
    PERFORM mill.set_watched(lanes, number, least(milliseconds, 1000));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.watch_lanes IS
    'Records for this time that a worker looks for tasks in these lanes every few milliseconds, so that enqueues need '
    'not notify. Returns false if another worker does so already. Without lanes, ends the watch of the worker, so that '
    'the next enqueue notifies';
GRANT EXECUTE ON FUNCTION mill.watch_lanes TO mill_worker;

-- schema/17_enqueue.sql ---------------------------------------------------------------------------

-- Enqueue: -> scheduled | blocked | pending, in the caller's transaction.
--
-- mill.enqueue and mill.enqueue_many are for people, mill.submit and mill.submit_many for programs. mill.enqueue runs
-- with the rights of its caller: mill.profile, which it calls, needs them to decide whether the caller may use a
-- profile.

CREATE OR REPLACE FUNCTION mill.find_byte_order_mark(sql text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    -- The characters of words: letters, digits, _ and everything outside of ASCII. The first is not a digit.
    first CONSTANT text := $re$[^\x01-\x40\x5b-\x5e\x60\x7b-\x7f]$re$;
    part CONSTANT text := $re$[^\x01-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x7f]$re$;
    found text[];
    token text;
    place integer := 1;
    next_place integer := 1;
    closing text;
    depth integer;
    after_word boolean := false;
    after_e boolean := false;
    escapes boolean := false;
BEGIN
    -- The first group is the start of a dollar quote without its last dollar sign, which inside of a quote can be the
    -- first one of the end.
    FOR found IN SELECT m FROM regexp_matches(sql, $re$(\$(?:$re$ || first || part || $re$*)?)(?=\$)$re$
        || $re$|(\ufeff|--|/\*|\*/|[^-\ufeff'"$/*\n\r\\]+|.)$re$, 'g') AS m
    LOOP
        token := coalesce(found[1], found[2]);
        IF place < next_place THEN
            NULL;
        ELSIF closing IS NULL THEN
            -- A constant with escapes, E'…', can continue in the next line.
            escapes := CASE WHEN token = '''' THEN escapes OR after_e
                ELSE escapes AND (token = '--' OR token !~ $re$[^ \t\n\r\f\v]$re$) END;
            IF found[1] IS NOT NULL AND NOT after_word THEN
                closing := token;
                next_place := place + length(token) + 1;
            ELSIF token ~ $re$\ufeff$re$ THEN
                RETURN place + length(substring(token FROM $re$^[^\ufeff]*$re$));
            ELSIF token IN ('''', '"', '--', '/*') THEN
                closing := CASE token WHEN '--' THEN chr(10) WHEN '/*' THEN '*/' ELSE token END;
                depth := 1;
            END IF;
            after_e := token ~ $re$[eE]\Z$re$ AND token !~ (part || $re$[eE]\Z$re$);
            after_word := token ~ (first || part || $re$*\Z$re$)
                OR after_word AND token ~ ($re$^\$?$re$ || part || $re$*\Z$re$);
        ELSIF closing = '*/' AND token IN ('/*', '*/') THEN
            depth := depth + CASE token WHEN '/*' THEN 1 ELSE -1 END;
            closing := CASE WHEN depth > 0 THEN closing END;
        ELSIF token = closing OR closing = chr(10) AND token = chr(13) THEN
            next_place := place + length(token) + CASE WHEN found[1] IS NULL THEN 0 ELSE 1 END;
            closing := NULL;
        ELSIF escapes AND closing = '''' AND ascii(token) = 92 THEN
            next_place := place + 2;
        END IF;
        place := place + length(token);
    END LOOP;
    RETURN NULL;
END
$function$;
COMMENT ON FUNCTION mill.find_byte_order_mark IS
    'Returns the place of the first byte order mark (U+FEFF) that is not in a constant, a quoted name or a comment: '
    'the number of the character, from 1';

CREATE OR REPLACE FUNCTION mill.check_statement(statement text, params jsonb) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    limit_bytes integer;
    mark CONSTANT text := chr(65279);
    place integer;
BEGIN
    -- Editors begin a file with a byte order mark, and the server takes the mark for a part of a word.
    IF strpos(statement, mark) > 0 THEN
        statement := ltrim(statement, mark);
        place := mill.find_byte_order_mark(statement);
        IF place IS NOT NULL THEN
            RAISE EXCEPTION 'the statement has a byte order mark (U+FEFF) at character %', place
                USING ERRCODE = '22023', HINT = 'Some editors write this invisible character at the start of a file. '
                    'Remove it where files were joined.';
        END IF;
    END IF;
    -- The first 1000 characters usually suffice; the whole statement is checked only if they are blank.
    IF statement IS NULL OR (left(statement, 1000) !~ '[^[:space:]]' AND statement !~ '[^[:space:]]') THEN
        RAISE EXCEPTION 'the statement is empty' USING ERRCODE = '22023';
    END IF;
    SELECT s.statement_limit_bytes INTO limit_bytes FROM mill.settings s;
    IF octet_length(statement) > limit_bytes THEN
        RAISE EXCEPTION 'the statement is % bytes long; the maximum is % bytes', octet_length(statement), limit_bytes
            USING ERRCODE = '54000',
                HINT = 'Load bulk data from a table or a server-side file, or raise statement_limit_bytes '
                    'in mill.settings.';
    END IF;
    IF jsonb_typeof(params) <> 'array' THEN
        RAISE EXCEPTION 'params is a JSON %, not an array', jsonb_typeof(params)
            USING ERRCODE = '22023', HINT = 'Give the values of $1, $2, … in order: ''["2026-01-01", 7]''.';
    END IF;
    IF jsonb_array_length(params) > 65535 THEN
        RAISE EXCEPTION 'params has more than 65535 values' USING ERRCODE = '54000';
    END IF;
    IF params IS NOT NULL THEN
        PERFORM mill.check_size('params are', params);
    END IF;
    RETURN statement;
END
$$;
COMMENT ON FUNCTION mill.check_statement IS
    'Returns the statement without a byte order mark at its start. Raises an error if the statement is empty or has '
    'another such mark, if the statement or params exceed the size limit, or if params is not a JSON array';

CREATE OR REPLACE FUNCTION mill.resolve_options(options mill.task_options, queue text, params jsonb)
RETURNS mill.task_options
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    settings mill.queues;
BEGIN
    SELECT q.* INTO settings FROM mill.queues q WHERE q.name = resolve_options.queue;
    options.store_params := CASE WHEN params IS NOT NULL
        AND NOT coalesce(options.store_params, settings.store_params, true) THEN false END;
    options.store_output := CASE WHEN NOT coalesce(options.store_output, settings.store_output, true) THEN false END;
    RETURN CASE WHEN NOT options IS NULL THEN options END;
END
$$;
COMMENT ON FUNCTION mill.resolve_options IS
    'Returns the options of a task with these params, after the defaults of its queue have been applied';

CREATE OR REPLACE FUNCTION mill.check_explain(statement text, mode mill.mode) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF mode = 'autocommit' THEN
        RAISE EXCEPTION 'a task in autocommit mode cannot be explained' USING ERRCODE = '22023',
            HINT = 'Omit the mode: EXPLAIN ANALYZE runs the statement once, in a transaction.';
    ELSIF statement !~*
        $re$^(\s|\(|--[^\n]*\n|/\*([^*]|\*+[^*/])*\*+/)*(select|insert|update|delete|merge|with|values|table)\M$re$
    THEN
        RAISE EXCEPTION 'EXPLAIN does not support this statement' USING ERRCODE = '22023',
            HINT = 'explain supports a single plain SELECT, INSERT, UPDATE, DELETE, MERGE, VALUES or WITH.';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_explain IS
    'Raises an error if EXPLAIN does not support the statement, or if the mode is not transaction. Checks only the '
    'first keyword of the statement. Whether there is only one statement is checked when the task runs';

CREATE OR REPLACE FUNCTION mill.read_task(document jsonb, keys text[]) RETURNS mill.tasks
LANGUAGE plpgsql STABLE AS $$
DECLARE
    task mill.tasks;
    rest CONSTANT jsonb := CASE WHEN jsonb_typeof(document) = 'object' THEN document - keys ELSE document END;
BEGIN
    IF rest <> '{}' THEN
        -- For usual options, this list is faster than a look at the type.
        IF jsonb_typeof(rest) <> 'object' OR rest - '{backoff,max_attempts,metadata,mode,retry_interval,tags,timeout,
            traceparent}'::text[] <> '{}'
        THEN
            PERFORM mill.check_options(rest, keys);
        END IF;
        task.options := mill.read_options(rest);
    END IF;
    -- The checks of the columns' domains on a row without values would take longer.
    task.run_as := '';
    IF document IS NOT NULL THEN
        task := jsonb_populate_record(task, document);
        IF document->>'profile' IS NOT NULL THEN
            task.run_as := mill.name_of_profile((document->>'profile')::uuid);
        END IF;
        IF document->>'due_in' IS NOT NULL THEN
            task.due_at := now() + (document->>'due_in')::interval;
        END IF;
    END IF;
    IF task.queue IS NULL THEN
        task.queue := 'default';
    END IF;
    RETURN task;
END
$$;
COMMENT ON FUNCTION mill.read_task IS
    'Returns the columns and the options of a new task that the document has, for mill.submit, mill.submit_many '
    'and mill.add_run_task. keys: allowed keys that are no options. Raises an error if another key is unknown or a '
    'value is invalid';

CREATE OR REPLACE FUNCTION mill.check_task(task mill.tasks, statement text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF task.run_as <> '' THEN
        PERFORM mill.check_routine(task.run_as, statement);
    END IF;
    IF (task.options).explain THEN
        PERFORM mill.check_explain(statement, (task.options).mode);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_task IS 'Raises an error if a new task with these options cannot have the statement';

CREATE OR REPLACE FUNCTION mill.with_limits(task mill.tasks, concurrency integer) RETURNS mill.tasks
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    task.limits := mill.required_limits(task.queue, task.group_name, task.run_id, task.concurrency_key, concurrency);
    task.priority := coalesce(task.priority,
        (SELECT g.priority FROM mill.groups g WHERE g.name = task.group_name));
    RETURN task;
END
$$;
COMMENT ON FUNCTION mill.with_limits IS
    'Returns a new task with its limits, and with the priority of its group if it has none';

CREATE OR REPLACE FUNCTION mill.submit_many(statements text[], params jsonb[] DEFAULT NULL,
    names text[] DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    task mill.tasks;
    resolve boolean;
BEGIN
    IF cardinality(submit_many.params) <> cardinality(statements)
        OR cardinality(submit_many.names) <> cardinality(statements)
    THEN
        RAISE EXCEPTION 'statements, params and names differ in length' USING ERRCODE = '22023';
    END IF;
    -- As in mill.submit: a single query determines whether any statement needs the detailed checks.
    IF EXISTS (SELECT FROM unnest(statements, submit_many.params) AS s(statement, params), mill.settings x
        WHERE s.statement IS NULL OR s.params IS NOT NULL OR octet_length(s.statement) > x.statement_limit_bytes
            OR left(s.statement, 1000) !~ '[^[:space:]]'
            OR strpos(s.statement, chr(65279)) > 0)
    THEN
        statements := ARRAY(SELECT mill.check_statement(s.statement, s.params)
            FROM unnest(statements, submit_many.params) WITH ORDINALITY AS s(statement, params, n) ORDER BY s.n);
    END IF;
    task := mill.read_task(submit_many.options,
        '{concurrency,concurrency_key,due_at,due_in,group_name,priority,profile,queue,run_id}');
    task.group_name := coalesce(task.group_name, (SELECT s.default_group FROM mill.settings s));
    IF task.run_as <> '' OR (task.options).explain THEN
        PERFORM mill.check_task(task, s.statement) FROM unnest(statements) AS s(statement);
    END IF;
    resolve := num_nonnulls((task.options).store_params, (task.options).store_output) > 0 OR EXISTS (SELECT
        FROM mill.queues q WHERE q.name = task.queue AND NOT (q.store_params AND q.store_output));
    IF num_nonnulls(task.group_name, task.concurrency_key, submit_many.options->>'concurrency') > 0
        OR EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = task.queue)
    THEN
        task := mill.with_limits(task, (submit_many.options->>'concurrency')::integer);
    END IF;
    task.state := mill.initial_state(task.due_at, task.limits);
    task.priority := coalesce(task.priority, 'normal');
    IF task.state <> 'scheduled' AND cardinality(statements) > 0 THEN
        PERFORM mill.wake_workers(mill.lane_bit(task.queue, task.priority, task.run_as));
    END IF;
    RETURN QUERY
        INSERT INTO mill.tasks (statement, params, name, queue, priority, due_at, state, blocking_limit_id,
            concurrency_key, group_name, run_id, limits, run_as, options, receipt)
        SELECT s.statement, s.params, s.name, task.queue, task.priority, coalesce(task.due_at, clock_timestamp()),
            task.state, CASE WHEN task.state = 'blocked' THEN task.limits[1] END, task.concurrency_key,
            task.group_name, task.run_id, task.limits, task.run_as,
            CASE WHEN resolve THEN mill.resolve_options(task.options, task.queue, s.params) ELSE task.options END,
            CASE WHEN task.run_as <> '' THEN mill.new_receipt(task.run_as) END
        FROM unnest(statements, submit_many.params, submit_many.names)
            WITH ORDINALITY AS s(statement, params, name, n)
        ORDER BY s.n
        RETURNING id;
END
$$;
COMMENT ON FUNCTION mill.submit_many IS
    'Enqueues many tasks with the same options, in order, for programs. SQL sessions use mill.enqueue_many. Returns '
    'their ids. options: as of mill.submit, without name and key';
GRANT EXECUTE ON FUNCTION mill.submit_many TO mill_producer;

CREATE OR REPLACE FUNCTION mill.claim_key(key text, task_id bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live bigint;
BEGIN
    LOOP
        -- Waits for a concurrent transaction that inserts the same key. The server shows the comment in the
        -- context of the error of a deadlock.
        INSERT INTO mill.dedup_keys AS k (key, task_id) VALUES (claim_key.key, claim_key.task_id) ON CONFLICT DO NOTHING
            /* to avoid deadlocks, enqueue the keys of a transaction in ascending order */;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        SELECT k.task_id INTO live FROM mill.dedup_keys k WHERE k.key = claim_key.key;
        -- Otherwise, the task with this key finished in the meantime.
        IF FOUND THEN
            RETURN live;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.claim_key IS
    'Gives the deduplication key to a new task and returns null, or returns the live task that has the key';

CREATE OR REPLACE FUNCTION mill.submit(statement text, params jsonb DEFAULT NULL, options jsonb DEFAULT NULL,
    OUT id bigint, OUT created boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    task mill.tasks;
    live bigint;
    unusual boolean;
    limited boolean;
    unstored boolean;
BEGIN
    task := mill.read_task(options,
        '{concurrency,concurrency_key,due_at,due_in,group_name,key,name,priority,profile,queue,run_id}');
    -- Most tasks need no further check. A single query decides.
    SELECT coalesce(task.group_name, s.default_group),
            octet_length(statement) > s.statement_limit_bytes OR left(statement, 1000) !~ '[^[:space:]]'
                OR strpos(statement, chr(65279)) > 0,
            EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = task.queue),
            EXISTS (SELECT FROM mill.queues q WHERE q.name = task.queue AND NOT (q.store_params AND q.store_output))
        INTO task.group_name, unusual, limited, unstored FROM mill.settings s;
    IF statement IS NULL OR unusual OR params IS NOT NULL THEN
        statement := mill.check_statement(statement, params);
    END IF;
    IF limited OR num_nonnulls(task.group_name, task.concurrency_key, options->>'concurrency') > 0 THEN
        task := mill.with_limits(task, (options->>'concurrency')::integer);
    END IF;
    IF task.run_as <> '' OR (task.options).explain THEN
        PERFORM mill.check_task(task, statement);
    END IF;
    IF unstored OR num_nonnulls((task.options).store_params, (task.options).store_output) > 0 THEN
        task.options := mill.resolve_options(task.options, task.queue, params);
    END IF;
    task.state := mill.initial_state(task.due_at, task.limits);
    id := nextval('mill.tasks_id_seq');
    IF task.key IS NOT NULL THEN
        live := mill.claim_key(task.key, id);
    END IF;
    created := live IS NULL;
    IF NOT created THEN
        id := live;
        RETURN;
    END IF;
    task.priority := coalesce(task.priority, 'normal');
    IF task.state <> 'scheduled' THEN
        PERFORM mill.wake_workers(mill.lane_bit(task.queue, task.priority, task.run_as));
    END IF;
    INSERT INTO mill.tasks (id, statement, params, name, queue, priority, due_at, state, blocking_limit_id, key,
        concurrency_key, group_name, run_id, limits, run_as, options, receipt)
    VALUES (id, statement, params, task.name, task.queue, task.priority, coalesce(task.due_at, clock_timestamp()),
        task.state, CASE WHEN task.state = 'blocked' THEN task.limits[1] END, task.key, task.concurrency_key,
        task.group_name, task.run_id, task.limits, task.run_as, task.options,
        CASE WHEN task.run_as <> '' THEN mill.new_receipt(task.run_as) END);
END
$$;
COMMENT ON FUNCTION mill.submit IS
    'Enqueues one task, for programs. SQL sessions use mill.enqueue. options: {"name", "key", "queue", "priority", '
    '"due_at", "due_in": "5 min", "group_name", "run_id", "concurrency_key", "concurrency", "profile": key returned by '
    'mill.profile, and the attributes of mill.task_options}. created: whether a task was enqueued; false if a live '
    'task has the key, and id is the id of that task';
GRANT EXECUTE ON FUNCTION mill.submit TO mill_producer;

CREATE OR REPLACE FUNCTION mill.enqueue(
    statement text,
    params jsonb DEFAULT NULL,
    name text DEFAULT NULL,
    queue text DEFAULT NULL,
    priority mill.priority DEFAULT NULL,
    due_at timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    retry_interval interval DEFAULT NULL,
    backoff mill.backoff DEFAULT NULL,
    jitter boolean DEFAULT NULL,
    timeout interval DEFAULT NULL,
    mode mill.mode DEFAULT NULL,
    at_most_once boolean DEFAULT NULL,
    external boolean DEFAULT NULL,
    key text DEFAULT NULL,
    group_name text DEFAULT NULL,
    run_id bigint DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency integer DEFAULT NULL,
    run_as text DEFAULT NULL,
    explain boolean DEFAULT NULL,
    options jsonb DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    submitted record;
BEGIN
    IF pg_catalog.num_nonnulls(name, queue, priority, due_at, max_attempts, retry_interval, backoff, jitter, timeout,
        mode, at_most_once, external, key, group_name, run_id, concurrency_key, concurrency, run_as, explain)
        OPERATOR(pg_catalog.>) 0
    THEN
        options := pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object('name', name, 'queue', queue,
            'priority', priority, 'due_at', due_at, 'max_attempts', max_attempts, 'retry_interval', retry_interval,
            'backoff', backoff, 'jitter', jitter, 'timeout', timeout, 'mode', mode, 'at_most_once', at_most_once,
            'external', external, 'key', key, 'group_name', group_name, 'run_id', run_id,
            'concurrency_key', concurrency_key, 'concurrency', concurrency,
            'profile', CASE WHEN run_as IS NOT NULL THEN mill.profile(run_as) END, 'explain', explain))
            OPERATOR(pg_catalog.||) coalesce(options, '{}');
    END IF;
    SELECT s.id, s.created INTO submitted FROM mill.submit(statement, params, options) s;
    IF NOT submitted.created THEN
        RAISE NOTICE 'no task was submitted: task % with key "%" is live', submitted.id, key;
    END IF;
    RETURN submitted.id;
END
$$;
COMMENT ON FUNCTION mill.enqueue IS
    'Enqueues one task in the caller''s transaction. Returns its id. If a live task has the key, returns the id of '
    'that task and raises a notice. Null: the default, which docs/enqueue.md lists. options: {"tags": ["etl"], '
    '"metadata": {"owner": "bi"}}, and other options, as of mill.submit';
GRANT EXECUTE ON FUNCTION mill.enqueue TO mill_producer;

CREATE OR REPLACE FUNCTION mill.enqueue_many(
    statements text[],
    params jsonb[] DEFAULT NULL,
    names text[] DEFAULT NULL,
    queue text DEFAULT NULL,
    priority mill.priority DEFAULT NULL,
    due_at timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    retry_interval interval DEFAULT NULL,
    backoff mill.backoff DEFAULT NULL,
    jitter boolean DEFAULT NULL,
    timeout interval DEFAULT NULL,
    mode mill.mode DEFAULT NULL,
    at_most_once boolean DEFAULT NULL,
    external boolean DEFAULT NULL,
    group_name text DEFAULT NULL,
    run_id bigint DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency integer DEFAULT NULL,
    profile uuid DEFAULT NULL,
    explain boolean DEFAULT NULL,
    options jsonb DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.submit_many(statements, params, names, jsonb_strip_nulls(jsonb_build_object('queue', queue,
        'priority', priority, 'due_at', due_at, 'max_attempts', max_attempts, 'retry_interval', retry_interval,
        'backoff', backoff, 'jitter', jitter, 'timeout', timeout, 'mode', mode, 'at_most_once', at_most_once,
        'external', external, 'group_name', group_name, 'run_id', run_id, 'concurrency_key', concurrency_key,
        'concurrency', concurrency, 'profile', profile, 'explain', explain)) || coalesce(options, '{}'))
$$;
COMMENT ON FUNCTION mill.enqueue_many IS
    'Enqueues many tasks with the same options, in order. Returns their ids. The arguments are those of mill.enqueue, '
    'except that profile => mill.profile(''name'') takes the place of run_as';
GRANT EXECUTE ON FUNCTION mill.enqueue_many TO mill_producer;

-- schema/18_notifications.sql ---------------------------------------------------------------------

-- Notifications: which events are reported to whom, and the outbox.
--
-- The transaction that causes an event inserts a row of mill.notifications for each subscription that
-- matches the event, so a notification exists exactly if the event was committed. The insert locks
-- nothing that another event could wait for. Successful tasks are not events: mill.complete does not
-- look at subscriptions.
--
-- The duty notifier of the workers delivers the rows: 20_notification_delivery.sql.

DO $$
BEGIN
    IF to_regtype('mill.notify_event') IS NULL THEN
        CREATE TYPE mill.notify_event AS ENUM ('attempt_failed', 'task_failed', 'run_failed', 'run_succeeded',
            'run_recovered', 'schedule_missed', 'late', 'queue_backlog', 'worker_lost', 'approval_needed', 'test');
    END IF;
END
$$;
COMMENT ON TYPE mill.notify_event IS
    'Event that can be reported. attempt_failed: an attempt of a task failed. task_failed: a task ended as failed, '
    'timed_out, lost or unknown. run_recovered: a run succeeded after the previous run of the same schedule or of the '
    'same jobs failed. late: a run has not ended by its deadline. queue_backlog: a queue passed a threshold of '
    'the subscription, or is below it again. approval_needed: a task of a run waits for approval. '
    'test: a message that an operator requested';

CREATE TABLE IF NOT EXISTS mill.subscriptions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name mill.label NOT NULL UNIQUE,
    events mill.notify_event[] NOT NULL CONSTRAINT events_given CHECK (cardinality(events) > 0),
    queue mill.queue_name,
    job mill.label,
    schedule text,
    tag text,
    task mill.label,
    destination mill.profile_name,
    channel text CONSTRAINT channel_length CHECK (octet_length(channel) BETWEEN 1 AND 63)
        CONSTRAINT channel_of_subscribers CHECK (channel <> 'mill'),
    statement mill.statement,
    task_queue mill.queue_name,
    run_as mill.profile_name,
    min_pending integer CONSTRAINT min_pending_range CHECK (min_pending BETWEEN 1 AND 100000),
    min_age interval CONSTRAINT min_age_range CHECK (min_age > '0'),
    rate_messages integer CONSTRAINT rate_messages_range CHECK (rate_messages BETWEEN 1 AND 1000000),
    rate_period interval CONSTRAINT rate_period_range CHECK (rate_period BETWEEN '1 second' AND '365 days'),
    enabled boolean NOT NULL DEFAULT true,
    description text,
    created_by text NOT NULL DEFAULT session_user,
    created_at timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT one_destination CHECK (num_nonnulls(destination, channel, statement) = 1),
    CONSTRAINT task_settings CHECK (statement IS NOT NULL OR num_nonnulls(task_queue, run_as) = 0),
    CONSTRAINT rate_whole CHECK (num_nonnulls(rate_messages, rate_period) IN (0, 2)),
    CONSTRAINT backlog_threshold
        CHECK (('queue_backlog' = ANY (events)) = (num_nonnulls(min_pending, min_age) > 0))
);
COMMENT ON TABLE mill.subscriptions IS
    'Subscriptions: events that are reported, and the destination, channel or task that receives them. Set with '
    'mill.set_subscription';
COMMENT ON COLUMN mill.subscriptions.queue IS
    'Reports only events of this queue. queue, job, schedule, tag and task have to match all; null: any';
COMMENT ON COLUMN mill.subscriptions.task IS 'Reports only events of tasks with this name; null: any';
COMMENT ON COLUMN mill.subscriptions.destination IS
    'Name of a destination in the configuration of workers, [destinations.NAME]. Its address and its secrets are not '
    'in the database';
COMMENT ON COLUMN mill.subscriptions.channel IS 'Channel to NOTIFY';
COMMENT ON COLUMN mill.subscriptions.statement IS
    'Statement of the task that is enqueued for each message; $1 is the message as jsonb';
COMMENT ON COLUMN mill.subscriptions.task_queue IS 'Queue of this task; null: default';
COMMENT ON COLUMN mill.subscriptions.run_as IS 'Profile of this task; null: none';
COMMENT ON COLUMN mill.subscriptions.min_pending IS
    'queue_backlog: number of pending tasks from which a queue has a backlog; null: any number';
COMMENT ON COLUMN mill.subscriptions.min_age IS
    'queue_backlog: wait of the oldest pending task from which a queue has a backlog; null: any wait';
COMMENT ON COLUMN mill.subscriptions.rate_messages IS
    'Maximum number of messages per rate_period; null: no limit. If more notifications are due, one message '
    'summarizes all of them';
GRANT SELECT ON mill.subscriptions TO mill_worker;

-- Only the senders lock its rows, never a transaction that causes an event.
CREATE TABLE IF NOT EXISTS mill.subscription_state (
    subscription_id bigint PRIMARY KEY,
    window_started_at timestamptz,
    window_messages integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    retry_at timestamptz,
    last_error text,
    last_error_at timestamptz,
    last_sent_at timestamptz,
    messages_sent bigint NOT NULL DEFAULT 0,
    backlog_checked_at timestamptz
);
COMMENT ON TABLE mill.subscription_state IS 'State of the delivery of each subscription';
COMMENT ON COLUMN mill.subscription_state.window_started_at IS
    'Start of the current rate_period, in which window_messages messages were attempted';
COMMENT ON COLUMN mill.subscription_state.failures IS
    'Number of failed messages since the last one that was delivered';
COMMENT ON COLUMN mill.subscription_state.retry_at IS 'Time before which no message is attempted; null: none';
COMMENT ON COLUMN mill.subscription_state.last_error IS
    'Error of the last message that failed, since the last one that was delivered; null: none';
GRANT SELECT ON mill.subscription_state TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.notifications (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription_id bigint NOT NULL,
    event mill.notify_event NOT NULL,
    document jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_attempt_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    retry_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '3 days',
    attempts integer NOT NULL DEFAULT 0,
    message_id uuid,
    last_error text,
    sent_at timestamptz,
    dead_at timestamptz,
    CONSTRAINT one_end CHECK (num_nonnulls(sent_at, dead_at) < 2)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
COMMENT ON TABLE mill.notifications IS
    'Outbox: one row per event and subscription. Delivered rows are deleted after a day, undeliverable ones after '
    'settings.history_retention';
COMMENT ON COLUMN mill.notifications.document IS
    'The event as JSON. It never has statements or parameters, and no error messages while settings.hide_statements '
    'is set';
COMMENT ON COLUMN mill.notifications.next_attempt_at IS
    'Earliest time of the next attempt. While a worker sends the notification, this is the time at which another '
    'worker may send it again';
COMMENT ON COLUMN mill.notifications.message_id IS
    'Message that contains the notification, new at each attempt; null: not attempted yet';
COMMENT ON COLUMN mill.notifications.dead_at IS 'Time at which the attempts ended without success; null: they did not';
-- Used by mill.take_messages. It does not contain next_attempt_at, so that an attempt need not update it.
CREATE INDEX IF NOT EXISTS notifications_due ON mill.notifications (subscription_id, id)
    WHERE sent_at IS NULL AND dead_at IS NULL;
-- Used by mill.prune_notifications.
CREATE INDEX IF NOT EXISTS notifications_ended ON mill.notifications (coalesce(sent_at, dead_at))
    WHERE sent_at IS NOT NULL OR dead_at IS NOT NULL;
-- Used by mill.subscription_status and mill.retry_notifications.
CREATE INDEX IF NOT EXISTS notifications_dead ON mill.notifications (subscription_id, id) WHERE dead_at IS NOT NULL;
GRANT SELECT ON mill.notifications TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.backlog_notices (
    subscription_id bigint NOT NULL,
    queue text NOT NULL,
    began_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (subscription_id, queue)
);
COMMENT ON TABLE mill.backlog_notices IS 'Queues whose backlog has been reported and has not ended';

-- Events ------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.notification_document(event mill.notify_event, subscription text, document jsonb)
RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object('event', event, 'time', clock_timestamp(), 'subscription', subscription)
        || CASE WHEN s.hide_statements THEN document - '{message,errors}'::text[] ELSE document END)
    FROM mill.settings s
$$;
COMMENT ON FUNCTION mill.notification_document IS
    'Returns the document of a notification. Omits error messages while settings.hide_statements is set';

CREATE OR REPLACE FUNCTION mill.notify_first(events mill.notify_event[], subject jsonb, details jsonb)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    problem text;
    inserted integer := 0;
BEGIN
    INSERT INTO mill.notifications (subscription_id, event, document)
        SELECT s.id, e.event, mill.notification_document(e.event, s.name,
            subject - 'from_subscription' || coalesce(details, '{}'))
        FROM mill.subscriptions s CROSS JOIN LATERAL (SELECT u.event
            FROM unnest(events) WITH ORDINALITY AS u(event, place)
            WHERE u.event = ANY (s.events) ORDER BY u.place LIMIT 1) AS e
        WHERE s.enabled
            AND (s.queue IS NULL OR s.queue = subject->>'queue')
            AND (s.task IS NULL OR s.task = subject->>'task')
            AND (s.schedule IS NULL OR s.schedule = subject->>'schedule')
            AND (s.job IS NULL OR lower(s.job) = lower(subject->>'job')
                OR EXISTS (SELECT FROM jsonb_path_query(subject, '$.jobs[*]') AS j(name)
                    WHERE lower(j.name #>> '{}') = lower(s.job)))
            AND (s.tag IS NULL OR subject->'tags' ? s.tag)
            -- A task of a subscription that fails would enqueue the next one, without end.
            AND NOT (s.statement IS NOT NULL AND subject ? 'from_subscription');
    GET DIAGNOSTICS inserted = ROW_COUNT;
    RETURN inserted;
EXCEPTION WHEN OTHERS THEN
    -- The caller ends a task or a run, or fires schedules: none of these may depend on a notification.
    GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT;
    RAISE WARNING 'cannot insert notifications of event %: %', events[1], problem;
    RETURN 0;
END
$$;
COMMENT ON FUNCTION mill.notify_first IS
    'As mill.notify, for several events, the most specific first: a subscription gets one notification, of the first '
    'event that it has';

CREATE OR REPLACE FUNCTION mill.notify(event mill.notify_event, subject jsonb, details jsonb DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    -- Without a subscription, this query of an empty table is the whole cost.
    IF NOT EXISTS (SELECT FROM mill.subscriptions s WHERE s.enabled AND event = ANY (s.events)) THEN
        RETURN 0;
    END IF;
    RETURN mill.notify_first(ARRAY[event], subject, details);
END
$$;
COMMENT ON FUNCTION mill.notify IS
    'Inserts a notification for each subscription that matches, in the transaction of the caller. subject: what the '
    'filters of subscriptions compare, {"queue", "task", "job", "jobs", "schedule", "tags", …}. details: the rest of '
    'the document. Never raises an error. Returns the number of notifications';
GRANT EXECUTE ON FUNCTION mill.notify TO mill_worker;

CREATE OR REPLACE FUNCTION mill.notify_attempt(task mill.tasks, outcome mill.outcome, final boolean, report jsonb)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_run record;
BEGIN
    SELECT t.job, r.jobs, r.tags, s.name AS schedule INTO of_run
        FROM mill.runs r LEFT JOIN mill.run_tasks t ON t.run_id = r.id AND t.node = task.node
            LEFT JOIN mill.schedules s ON s.id = r.schedule_id
        WHERE r.id = task.run_id AND task.node IS NOT NULL;
    PERFORM mill.notify_first(
        CASE WHEN final THEN '{task_failed,attempt_failed}' ELSE '{attempt_failed}' END::mill.notify_event[],
        jsonb_build_object('task_id', task.id, 'task', task.name, 'queue', task.queue, 'run_id', task.run_id,
            'job', of_run.job, 'jobs', of_run.jobs, 'schedule', of_run.schedule,
            'tags', nullif(coalesce((task.options).tags, '{}') || coalesce(of_run.tags, '{}'), '{}'))
            || CASE WHEN (task.options).metadata ? 'pgmill_subscription' THEN '{"from_subscription": true}'
                ELSE '{}' END::jsonb,
        jsonb_build_object('outcome', outcome, 'attempt', task.attempt, 'max_attempts',
            (mill.effective(task.options)).max_attempts, 'final', final, 'sqlstate', report->'sqlstate',
            'message', left(report->>'message', 1000),
            'traceparent', (task.options).traceparent));
END
$$;
COMMENT ON FUNCTION mill.notify_attempt IS
    'Inserts the notifications of an attempt that did not succeed, for mill.record_attempt';
GRANT EXECUTE ON FUNCTION mill.notify_attempt TO mill_worker;

-- schema/19_finish.sql ----------------------------------------------------------------------------

-- Finish: complete, fail, release, reclaim: running -> the other states.
--
-- Every change requires the token of the claim; if the claim is lost, nothing changes.
--
-- mill.complete is called in the task's own transaction, by the login of the task, so that effects and
-- completion commit together. It accepts the token only in the session that the claim names: a success that
-- another session records would remain if the transaction of the task is rolled back. The other functions
-- are for mill_worker only.
--
-- When a task of a run finishes, the same transaction appends one row to mill.run_events. It takes no
-- lock that another task of the run could wait for. mill.run_events is declared here and not in
-- 29_runs.sql, because mill.complete has a variable of its row type.

CREATE TABLE IF NOT EXISTS mill.run_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id bigint NOT NULL,
    node bigint,
    started_at timestamptz,
    finished_at timestamptz,
    rows bigint,
    attempts integer,
    session_pid integer,
    outcome mill.outcome,
    message text,
    result jsonb
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.run_events IS
    'Queue of events for mill.advance_run. node and outcome: a task of the run finished. node only: a task was added. '
    'node null: the run must be examined';
CREATE INDEX IF NOT EXISTS run_events_run ON mill.run_events (run_id, id);
REVOKE INSERT ON mill.run_events FROM mill_worker;
GRANT SELECT ON mill.run_events TO mill_worker;

-- The columns that an attempt takes from its task, in the order of mill.attempts. No other place repeats
-- this list. The planner inlines the function, which saves a call per row, unless an argument is
-- volatile.
CREATE OR REPLACE FUNCTION mill.attempt_row(
    task mill.tasks,
    finished_at timestamptz,
    outcome mill.outcome,
    final boolean,
    rows bigint,
    report jsonb
) RETURNS SETOF mill.attempts
LANGUAGE sql STABLE AS $$
    SELECT finished_at, task.id, task.enqueued_at, task.due_at, task.claimed_at, task.claimed_by, task.token,
        rows, task.attempt, outcome, task.priority, task.session_pid, (report->>'position')::integer, final,
        task.queue, task.name, task.key, task.concurrency_key, task.group_name, task.run_id, task.node,
        report->>'sqlstate', report->>'message', report->>'detail', report->>'hint', report->>'context',
        CASE WHEN (task.options).store_output IS NULL THEN report->'notices' END,
        CASE WHEN (task.options).store_output IS NULL THEN report->'result' END,
        -- A plan can contain the values of parameters.
        CASE WHEN num_nonnulls((task.options).store_output, (task.options).store_params) = 0
            THEN report->'plan' END,
        task.run_as, CASE WHEN (task.options).store_params IS NULL THEN task.params END, task.statement, task.options,
        task.receipt
$$;
COMMENT ON FUNCTION mill.attempt_row IS
    'Returns the history row of an attempt of the task. report: {"sqlstate", "message", "detail", "hint", "context", '
    '"position", "notices", "result", "plan"}';
GRANT EXECUTE ON FUNCTION mill.attempt_row TO mill_worker;

CREATE OR REPLACE FUNCTION mill.record_attempt(
    task mill.tasks,
    outcome mill.outcome,
    final boolean,
    report jsonb
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    finished CONSTANT timestamptz := clock_timestamp();
BEGIN
    INSERT INTO mill.attempts SELECT r.* FROM mill.attempt_row(task, finished, record_attempt.outcome,
        record_attempt.final, (report->>'rows')::bigint, report) AS r;
    IF record_attempt.final AND task.key IS NOT NULL THEN
        DELETE FROM mill.dedup_keys k WHERE k.key = task.key;
    END IF;
    IF record_attempt.final AND task.node IS NOT NULL THEN
        INSERT INTO mill.run_events (run_id, node, outcome, started_at, finished_at, attempts,
            session_pid, rows, message)
        VALUES (task.run_id, task.node, record_attempt.outcome, task.claimed_at, finished, task.attempt,
            task.session_pid, (report->>'rows')::bigint, report->>'message');
    END IF;
    -- Without a subscription, this query of an empty table is the whole cost.
    IF record_attempt.outcome NOT IN ('succeeded', 'cancelled', 'interrupted') AND EXISTS (SELECT
        FROM mill.subscriptions s WHERE s.enabled AND s.events && '{attempt_failed,task_failed}')
    THEN
        PERFORM mill.notify_attempt(task, record_attempt.outcome, record_attempt.final, report);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.record_attempt IS
    'Writes the history row of an attempt. If the attempt is final, also frees the deduplication key and notifies the '
    'run. If the attempt did not succeed, also inserts the notifications of subscriptions';
GRANT EXECUTE ON FUNCTION mill.record_attempt TO mill_worker;

CREATE OR REPLACE FUNCTION mill.first_row(result jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    -- Values are texts or null, so an object cannot be mistaken for a value.
    SELECT CASE WHEN octet_length(r.row::text) <= 8192 THEN r.row
        ELSE (SELECT jsonb_object_agg(k.name, '{"unusable": "the row is longer than 8 kB"}'::jsonb)
            FROM jsonb_object_keys(r.row) AS k(name)) END
    FROM (SELECT jsonb_object_agg(c.name, CASE WHEN result->'unusable' ? c.name
                THEN jsonb_build_object('unusable', result->'unusable'->c.name)
                ELSE result->'rows'->0->(c.place::integer - 1) END) AS row
        FROM jsonb_array_elements_text(result->'columns') WITH ORDINALITY AS c(name, place)
        WHERE jsonb_typeof(result->'rows'->0) = 'array') AS r
$$;
COMMENT ON FUNCTION mill.first_row IS
    'Returns the first row of attempts.result as an object by column; null if there is none. A value that cannot be a '
    'parameter of a later task, because it is truncated or a placeholder, or because the row exceeds 8 kB, is '
    '{"unusable": reason}';

CREATE OR REPLACE FUNCTION mill.may_complete_for_others() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_has_role(session_user, 'mill_worker', 'USAGE')
$$;
COMMENT ON FUNCTION mill.may_complete_for_others IS
    'Returns whether the login may complete a task that another session runs: only a control session of a worker may, '
    'after the effects are committed. A token that others have read is of no use to them';

CREATE OR REPLACE FUNCTION mill.complete(
    task_ids bigint[],
    claim_tokens uuid[],
    xact xid8,
    ran_until double precision[],
    row_counts bigint[],
    reports jsonb[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = on AS $$
DECLARE
    done bigint[];
    keys text[];
    limited bigint[];
    starts timestamptz[];
    in_runs mill.run_events[];
BEGIN
    -- If the statement ended its transaction, this call runs in a later transaction. What the statement
    -- committed remains, but the attempt does not succeed.
    IF xact <> pg_current_xact_id() THEN
        RAISE EXCEPTION 'the task ended its own transaction' USING ERRCODE = 'MT002';
    END IF;
    WITH gone AS (
        DELETE FROM mill.tasks t
        WHERE t.id = ANY (task_ids) AND t.token = claim_tokens[array_position(task_ids, t.id)]
            AND (t.session_pid = pg_backend_pid() OR mill.may_complete_for_others())
        RETURNING t AS task, array_position(task_ids, t.id) AS n, t.id, t.claimed_at, t.limits, t.run_id, t.node,
            clock_timestamp() AS deleted_at
    ), recorded AS (
        INSERT INTO mill.attempts
        SELECT r.* FROM gone g CROSS JOIN LATERAL mill.attempt_row(g.task,
            least(now() + make_interval(secs => ran_until[g.n]), g.deleted_at), 'succeeded', true,
            row_counts[g.n], reports[g.n]) AS r
        RETURNING attempts.task_id, attempts.key
    )
    SELECT array_agg(r.task_id), array_agg(r.key) FILTER (WHERE r.key IS NOT NULL),
            (SELECT array_agg(g.id) FROM gone g WHERE g.limits IS NOT NULL),
            (SELECT array_agg(g.claimed_at) FROM gone g WHERE g.limits IS NOT NULL),
            (SELECT array_agg(ROW(NULL, g.run_id, g.node, g.claimed_at, clock_timestamp(), row_counts[g.n],
                    (g.task).attempt, (g.task).session_pid, 'succeeded', NULL,
                    mill.first_row(reports[g.n]->'result'))::mill.run_events)
                FROM gone g WHERE g.node IS NOT NULL)
        INTO done, keys, limited, starts, in_runs FROM recorded r;
    IF cardinality(done) IS DISTINCT FROM cardinality(task_ids) THEN
        RAISE EXCEPTION 'task % is no longer claimed with this token in this session', (SELECT min(i)
            FROM unnest(task_ids) AS i WHERE i <> ALL (coalesce(done, '{}'))) USING ERRCODE = 'MT001';
    END IF;
    IF keys IS NOT NULL THEN
        DELETE FROM mill.dedup_keys k WHERE k.key = ANY (keys);
    END IF;
    IF limited IS NOT NULL THEN
        PERFORM mill.release_permits(limited, starts);
    END IF;
    IF in_runs IS NOT NULL THEN
        INSERT INTO mill.run_events (run_id, node, started_at, finished_at, rows, attempts,
                session_pid, outcome, result)
            SELECT e.run_id, e.node, e.started_at, e.finished_at, e.rows, e.attempts, e.session_pid, e.outcome, e.result
            FROM unnest(in_runs) AS e;
    END IF;
END
$$;
COMMENT ON FUNCTION mill.complete IS
    'Completes tasks (running -> finished) in their own transaction, all given tasks or none. ran_until: seconds from '
    'the start of the transaction to the end of each task, null: now. reports: notices, result and plan of each task. '
    'Everybody may execute it, because it requires the tokens of the claims and the sessions that they name, or a '
    'login of mill_worker. Error MT001: a claim is lost. Error MT002: the current transaction is not the one that was '
    'begun for the tasks';
-- PUBLIC gets the EXECUTE privilege in 47_grants.sql, after the REVOKE on all routines.

-- As mill.complete, but for one task that ended just now. Without arrays, and with fewer settings, the
-- call is cheaper. It does not call mill.record_attempt, which cannot pass on the result of the task. The
-- proof is worth as much as the token in this transaction, and nothing in every other one, so that sessions
-- that see the text of the call cannot use it.
CREATE OR REPLACE FUNCTION mill.complete_with_proof(task_id bigint, proof text, xact xid8, row_count bigint,
    report jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off AS $$
DECLARE
    task mill.tasks;
    finished timestamptz;
BEGIN
    IF xact <> pg_current_xact_id() THEN
        RAISE EXCEPTION 'the task ended its own transaction' USING ERRCODE = 'MT002';
    END IF;
    DELETE FROM mill.tasks t WHERE t.id = task_id
        AND encode(sha256(uuid_send(t.token) || xid8send(xact)), 'hex') = proof
        AND (t.session_pid = pg_backend_pid() OR mill.may_complete_for_others()) RETURNING t.* INTO task;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'task % is no longer claimed with this token in this session', task_id USING ERRCODE = 'MT001';
    END IF;
    finished := clock_timestamp();
    INSERT INTO mill.attempts
        SELECT r.* FROM mill.attempt_row(task, finished, 'succeeded', true, row_count, report) AS r;
    IF task.key IS NOT NULL THEN
        DELETE FROM mill.dedup_keys k WHERE k.key = task.key;
    END IF;
    IF task.limits IS NOT NULL THEN
        PERFORM mill.release_permits(ARRAY[task.id], ARRAY[task.claimed_at]);
    END IF;
    IF task.node IS NOT NULL THEN
        INSERT INTO mill.run_events (run_id, node, started_at, finished_at, rows, attempts, session_pid, outcome,
                result)
            VALUES (task.run_id, task.node, task.claimed_at, finished, row_count, task.attempt, task.session_pid,
                'succeeded', mill.first_row(report->'result'));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.complete_with_proof IS
    'Completes one task that ended just now (running -> finished). proof: hexadecimal SHA-256 of the 16 bytes of the '
    'token and the 8 bytes of xact, the current transaction. Otherwise as mill.complete: the same errors, and '
    'everybody may execute it';

CREATE OR REPLACE FUNCTION mill.record_receipt(task_id bigint, claim_token uuid, row_count bigint,
    ran_seconds double precision, result jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    started timestamptz;
BEGIN
    SELECT t.claimed_at INTO started FROM mill.tasks t
        WHERE t.id = record_receipt.task_id AND t.token = claim_token FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- The clock of the target is not the clock of the queue. Only the duration is taken from it. If the target
    -- was unreachable for longer than the history is kept, the task counts as completed now. The partition of the
    -- day decides, because history_retention may have been shorter when mill.prune dropped it.
    PERFORM mill.complete(ARRAY[record_receipt.task_id], ARRAY[claim_token], pg_current_xact_id(),
        ARRAY[CASE WHEN to_regclass('mill.attempts_' || to_char((started + make_interval(secs => ran_seconds))
                AT TIME ZONE 'UTC', 'YYYYMMDD')) IS NOT NULL
            THEN extract(epoch FROM started - now())::double precision + ran_seconds ELSE 0 END], ARRAY[row_count],
        ARRAY[CASE WHEN result IS NOT NULL THEN jsonb_build_object('result', result) END]);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.record_receipt IS
    'Completes a task whose receipt was found in its target (running -> finished). ran_seconds: run time in the '
    'target. result: first rows that the statement returned. Returns false if the claim is lost';
GRANT EXECUTE ON FUNCTION mill.record_receipt TO mill_worker;

CREATE OR REPLACE FUNCTION mill.lock_run(run_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM mill.runs r WHERE r.id = lock_run.run_id FOR SHARE SKIP LOCKED;
    RETURN FOUND OR NOT EXISTS (SELECT FROM mill.runs r WHERE r.id = lock_run.run_id);
END
$$;
COMMENT ON FUNCTION mill.lock_run IS
    'Locks the row of a run against changes. Does not wait: returns false if another session changes the run';
GRANT EXECUTE ON FUNCTION mill.lock_run TO mill_worker;

CREATE OR REPLACE FUNCTION mill.await_run(run_id bigint, shared boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
BEGIN
    IF shared THEN
        PERFORM FROM mill.runs r WHERE r.id = await_run.run_id FOR SHARE;
    ELSE
        PERFORM FROM mill.runs r WHERE r.id = await_run.run_id FOR NO KEY UPDATE;
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION mill.await_run IS
    'Locks the row of a run that another session has locked, against changes (shared) or against all other sessions. '
    'Returns false if it cannot get the lock within 0.2 s, for example because a transaction that has changed the run '
    'is still open';

CREATE OR REPLACE FUNCTION mill.run_is_cancelled(task mill.tasks) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cancelled timestamptz;
BEGIN
    IF task.node IS NULL THEN
        RETURN false;
    END IF;
    -- The lock conflicts with the lock of a cancel of the run. So either this function sees the cancel,
    -- or the cancel waits and then finds a task that is no longer running. It is not waited for without limit,
    -- because the worker needs the session for other tasks.
    IF NOT mill.lock_run(task.run_id) AND NOT mill.await_run(task.run_id, true) THEN
        RAISE EXCEPTION 'other transactions are changing run %', task.run_id USING ERRCODE = '55P03';
    END IF;
    SELECT r.cancelled_at INTO cancelled FROM mill.runs r WHERE r.id = task.run_id;
    RETURN cancelled IS NOT NULL;
END
$$;
COMMENT ON FUNCTION mill.run_is_cancelled IS
    'Returns whether the task belongs to a cancelled run, so that it must not be attempted again. Raises '
    'lock_not_available if another transaction that changes the run stays open; the caller has to try again';
GRANT EXECUTE ON FUNCTION mill.run_is_cancelled TO mill_worker;

CREATE OR REPLACE FUNCTION mill.fail(
    task_id bigint,
    claim_token uuid,
    outcome mill.outcome,
    verdict text,
    retry_in interval,
    report jsonb
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    result text := 'finished';
    next_state mill.state;
    crash_cap integer;
BEGIN
    IF outcome = 'interrupted' THEN
        PERFORM mill.detect_crash();
    END IF;
    SELECT t.* INTO task FROM mill.tasks t
        WHERE t.id = task_id AND t.token = claim_token FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'lost';
    END IF;
    IF outcome = 'interrupted' AND task.crashes > 0 THEN
        SELECT s.max_crashes INTO crash_cap FROM mill.settings s;
        IF task.crashes >= crash_cap THEN
            verdict := 'final';
            outcome := 'lost';
            result := 'crashed';
            report := coalesce(report, '{}') || jsonb_build_object('hint', format('The server has crashed while no '
                'other task could be the cause; the task has reached max_crashes (%s).', crash_cap));
        END IF;
    END IF;
    -- A cancelled task is not attempted again. A failure of its own remains its outcome.
    IF EXISTS (SELECT FROM mill.cancel_requests r WHERE r.task_id = task.id)
        OR verdict <> 'final' AND mill.run_is_cancelled(task)
    THEN
        IF outcome NOT IN ('failed', 'timed_out', 'unknown') OR verdict NOT IN ('failure', 'final') THEN
            outcome := 'cancelled';
            result := 'cancelled';
        END IF;
        verdict := 'final';
    END IF;
    PERFORM mill.record_attempt(task, outcome, verdict = 'final', report);
    IF task.limits IS NOT NULL THEN
        PERFORM mill.release_permits(ARRAY[task.id], ARRAY[task.claimed_at]);
    END IF;
    IF outcome = 'lost' AND task.node IS NOT NULL THEN
        PERFORM mill.log_reclaimed(task);
    END IF;
    IF verdict = 'final' THEN
        DELETE FROM mill.tasks t WHERE t.id = task_id;
        DELETE FROM mill.cancel_requests r WHERE r.task_id = task.id;
        RETURN result;
    END IF;
    IF verdict = 'failure' AND task.limits IS NOT NULL THEN
        task.limits := mill.without_suspicion(task.limits);
    END IF;
    next_state := mill.initial_state(now() + retry_in, task.limits);
    UPDATE mill.tasks t SET
        state = next_state,
        limits = task.limits,
        blocking_limit_id = CASE WHEN next_state = 'blocked' THEN task.limits[1] END,
        start_by = NULL,
        due_at = now() + retry_in,
        failures = t.failures + (verdict = 'failure')::integer,
        transient_failures = t.transient_failures + (verdict = 'transient')::integer,
        crashes = t.crashes + (verdict = 'crash')::integer,
        claimed_at = NULL, claimed_by = NULL, token = NULL, session_pid = NULL,
        session_started_at = NULL
    WHERE t.id = task_id;
    RETURN 'retried';
END
$$;
COMMENT ON FUNCTION mill.fail IS
    'Ends an attempt that did not succeed. verdict failure, transient or crash: the task is attempted again (running '
    '-> scheduled | blocked | pending), and the counter of that name is incremented. verdict final: the task is '
    'finished. If the task or its run was cancelled, the task is finished as well, with the outcome cancelled unless '
    'it failed by itself. So it is if the server has crashed too often while only this task could be the cause. '
    'Returns lost, retried, finished, cancelled or crashed';
GRANT EXECUTE ON FUNCTION mill.fail TO mill_worker;

CREATE OR REPLACE FUNCTION mill.release_claim(task_id bigint, claim_token uuid, delay interval)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    next_state mill.state;
BEGIN
    PERFORM mill.detect_crash();
    SELECT t.* INTO task FROM mill.tasks t
        WHERE t.id = task_id AND t.token = claim_token FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF task.crashes > 0 AND task.claimed_at < (SELECT s.crashed_at FROM mill.server s WHERE s.only_row) THEN
        -- The attempt may have caused the crash, so it is recorded.
        PERFORM mill.fail(task_id, claim_token, 'interrupted', 'transient', delay,
            jsonb_build_object('message', 'the server crashed'));
        RETURN true;
    END IF;
    -- The check follows the lock of the task, because a cancel also locks the task before it inserts its
    -- request.
    IF EXISTS (SELECT FROM mill.cancel_requests r WHERE r.task_id = release_claim.task_id)
        OR mill.run_is_cancelled(task)
    THEN
        PERFORM mill.fail(task_id, claim_token, 'cancelled', 'final', '0',
            jsonb_build_object('message', 'cancelled on request'));
        RETURN true;
    END IF;
    IF task.limits IS NOT NULL THEN
        PERFORM mill.release_permits(ARRAY[task.id], ARRAY[task.claimed_at]);
    END IF;
    next_state := mill.initial_state(now() + delay, task.limits);
    UPDATE mill.tasks t SET
        state = next_state,
        blocking_limit_id = CASE WHEN next_state = 'blocked' THEN t.limits[1] END,
        start_by = NULL,
        due_at = CASE WHEN delay > '0' THEN now() + delay ELSE t.due_at END,
        attempt = t.attempt - 1,
        claimed_at = NULL, claimed_by = NULL, token = NULL, session_pid = NULL,
        session_started_at = NULL
    WHERE t.id = task_id;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.release_claim IS
    'Releases a claim without using up the attempt: running -> blocked | pending, or with a delay scheduled. A task '
    'with a cancel request ends as cancelled. If a crash of the server since the claim counts for the task, the '
    'attempt ends as interrupted instead. Returns false if the claim is lost';
GRANT EXECUTE ON FUNCTION mill.release_claim TO mill_worker;

CREATE OR REPLACE FUNCTION mill.reclaim(worker_id uuid, max_count integer DEFAULT 500, resolved uuid[] DEFAULT '{}')
RETURNS TABLE (task_id bigint, released boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    crash_cap integer;
    server_crash timestamptz;
    once boolean;
    interrupted boolean;
    verdict text;
    ended mill.outcome;
BEGIN
    PERFORM mill.detect_crash();
    SELECT s.max_crashes INTO crash_cap FROM mill.settings s;
    SELECT s.crashed_at INTO server_crash FROM mill.server s;
    FOR task IN
        SELECT t.* FROM mill.tasks t
        -- Takes only tasks whose backend no longer exists, so that their SQL cannot have further
        -- effects. A task whose completion is about to commit is skipped, because the completion has
        -- locked its row. The backend of a task with a target is on another server. Such a task is taken
        -- after it has been resolved there. A task whose run another session changes is skipped too, so that
        -- the others do not wait for it.
        WHERE t.state = 'running' AND t.claimed_by = reclaim.worker_id
            AND CASE WHEN t.receipt IS NULL
                THEN NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = t.session_pid
                    AND coalesce(a.backend_start = t.session_started_at, true))
                ELSE t.token = ANY (reclaim.resolved) END
            AND (t.node IS NULL OR mill.lock_run(t.run_id))
        ORDER BY t.id LIMIT max_count FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        -- 20: MAX_FREE_ATTEMPTS (crates/queue/src/transition/retry.rs).
        once := (mill.effective(task.options)).at_most_once;
        interrupted := task.claimed_at < server_crash AND task.transient_failures < 20 AND NOT once;
        ended := CASE WHEN once THEN 'unknown' WHEN interrupted THEN 'interrupted' ELSE 'lost' END;
        verdict := CASE WHEN interrupted THEN 'transient'
            WHEN once OR task.crashes + 1 >= crash_cap THEN 'final' ELSE 'crash' END;
        reclaim.task_id := task.id;
        reclaim.released := mill.fail(task.id, task.token, ended, verdict, '0', jsonb_build_object(
            'message', CASE WHEN interrupted THEN 'the server crashed, and the worker died'
                WHEN once THEN 'the worker died; it is unknown whether the statement completed'
                WHEN verdict = 'final' THEN format('the worker died; the task has reached max_crashes (%s)', crash_cap)
                ELSE 'the worker died' END)) = 'retried';
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.reclaim IS
    'Reclaims the tasks of a dead worker whose backends no longer exist, up to max_count, and those of the tasks with '
    'a target whose claims, by their tokens, are resolved: they can no longer commit. An at-most-once task ends as '
    'unknown, a task that reaches settings.max_crashes as lost. released: whether the task will be attempted again';
GRANT EXECUTE ON FUNCTION mill.reclaim TO mill_worker;

-- schema/20_notification_delivery.sql -------------------------------------------------------------

-- Delivery of notifications: claim, end of an attempt, backlogs.
--
-- A sender claims the notifications of a message with next_attempt_at in the future, sends the message
-- without an open transaction, and then records the result. If the sender dies in between, another one
-- sends the notifications again after a minute: each message is delivered at least once. A message to a
-- channel or a task is delivered in the transaction that marks its notifications as sent: exactly once.
--
-- The row of mill.subscription_state is locked during a claim, so that the workers together do not exceed
-- the rate of a subscription.

CREATE OR REPLACE FUNCTION mill.delivery_backoff(failures integer) RETURNS interval
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT least(interval '15 minutes', interval '5 s' * 2 ^ least(failures - 1, 10)) * (0.5 + random())
$$;
COMMENT ON FUNCTION mill.delivery_backoff IS
    'Returns the wait after this many failures: 5 seconds, doubled with each failure, up to 15 minutes, with jitter';

CREATE OR REPLACE FUNCTION mill.digest_document(subscription mill.subscriptions, message_id uuid, ids bigint[])
RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH included AS MATERIALIZED (
        SELECT n.id, n.event, n.document, n.created_at FROM mill.notifications n
        WHERE n.id = ANY (ids) AND n.message_id = digest_document.message_id
    ), grouped AS (
        SELECT i.event, i.document->>'sqlstate' AS sqlstate, left(i.document->>'message', 200) AS message,
            count(*) AS count
        FROM included i GROUP BY 1, 2, 3 ORDER BY count(*) DESC, 1, 2, 3 LIMIT 10
    )
    SELECT jsonb_build_object('event', 'digest', 'time', clock_timestamp(), 'subscription', subscription.name,
        'count', (SELECT count(*) FROM included), 'first_at', (SELECT min(i.created_at) FROM included i),
        'last_at', (SELECT max(i.created_at) FROM included i),
        'events', (SELECT jsonb_agg(jsonb_strip_nulls(to_jsonb(g))) FROM grouped g),
        'samples', (SELECT jsonb_agg(s.document) FROM (SELECT i.document FROM included i ORDER BY i.id LIMIT 5) AS s))
$$;
COMMENT ON FUNCTION mill.digest_document IS
    'Returns one document for many notifications: their number by event and error, and the first five of them';

CREATE OR REPLACE FUNCTION mill.take_messages(subscription mill.subscriptions, state mill.subscription_state,
    max_messages integer, expires_in interval, keeps_incidents boolean)
RETURNS TABLE (message_id uuid, ids bigint[], document jsonb)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    -- Bounds the number of notifications of a digest.
    max_count CONSTANT integer := 10000;
    left_in_window integer := max_messages;
    due bigint[];
    joined bigint[] := '{}';
    one bigint;
BEGIN
    IF subscription.rate_messages IS NOT NULL THEN
        IF coalesce(state.window_started_at <= now() - subscription.rate_period, true) THEN
            state.window_started_at := now();
            state.window_messages := 0;
        ELSIF state.window_started_at > clock_timestamp() THEN
            -- The clock was set back. The messages of the window count for one window from now.
            state.window_started_at := now();
        END IF;
        left_in_window := subscription.rate_messages - state.window_messages;
        IF left_in_window <= 0 THEN
            UPDATE mill.subscription_state d
                SET retry_at = state.window_started_at + subscription.rate_period,
                    window_started_at = state.window_started_at
                WHERE d.subscription_id = subscription.id;
            RETURN;
        END IF;
    END IF;
    due := ARRAY(SELECT n.id FROM mill.notifications n
        WHERE n.subscription_id = subscription.id AND n.sent_at IS NULL AND n.dead_at IS NULL
            AND (n.attempts = 0 OR n.next_attempt_at <= now() OR n.next_attempt_at > now() + interval '23 minutes')
        ORDER BY n.id LIMIT CASE WHEN subscription.rate_messages IS NULL THEN max_messages ELSE max_count END);
    IF subscription.rate_messages IS NOT NULL AND cardinality(due) > left_in_window THEN
        -- No digest resolves the incident of a failure, so each recovery is a message of its own.
        joined := ARRAY(SELECT n.id FROM mill.notifications n WHERE n.id = ANY (due)
            AND NOT (keeps_incidents AND n.document @> '{"resolved": true}') ORDER BY n.id);
        -- The last message of the window goes to the oldest notification.
        IF cardinality(joined) < 2 OR left_in_window = 1 AND due[1] < joined[1] THEN
            joined := '{}';
        END IF;
    END IF;
    IF cardinality(joined) > 0 THEN
        message_id := gen_random_uuid();
        ids := joined;
        UPDATE mill.notifications n SET message_id = take_messages.message_id, attempts = n.attempts + 1,
                next_attempt_at = now() + expires_in
            WHERE n.id = ANY (joined);
        document := mill.digest_document(subscription, message_id, ids)
            || jsonb_build_object('message_id', message_id);
        state.window_messages := state.window_messages + 1;
        RETURN NEXT;
        due := ARRAY(SELECT u.id FROM unnest(due) AS u(id) EXCEPT SELECT unnest(joined) ORDER BY 1);
        left_in_window := least(left_in_window, max_messages) - 1;
    END IF;
    FOREACH one IN ARRAY due[1:least(left_in_window, max_messages)] LOOP
        message_id := gen_random_uuid();
        ids := ARRAY[one];
        UPDATE mill.notifications n SET message_id = take_messages.message_id, attempts = n.attempts + 1,
                next_attempt_at = now() + expires_in
            WHERE n.id = one
            RETURNING n.document || jsonb_build_object('message_id', n.message_id, 'notification_id', n.id)
            INTO document;
        state.window_messages := state.window_messages + 1;
        RETURN NEXT;
    END LOOP;
    UPDATE mill.subscription_state d SET window_started_at = state.window_started_at,
            window_messages = state.window_messages
        WHERE d.subscription_id = subscription.id AND subscription.rate_messages IS NOT NULL;
END
$$;
COMMENT ON FUNCTION mill.take_messages IS
    'Claims due notifications of a subscription whose state is locked, and returns the messages to send: one per '
    'notification, or one digest of all if they are more than the rate allows. keeps_incidents: recoveries are not '
    'in the digest';

CREATE OR REPLACE FUNCTION mill.due_subscriptions(destinations text[], busy bigint[]) RETURNS SETOF bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.id FROM mill.subscriptions s JOIN mill.subscription_state d ON d.subscription_id = s.id
    WHERE s.enabled
        -- These times, and a wait that is too long, show that the clock was set back.
        AND (coalesce(d.retry_at <= now(), true)
            OR greatest(d.last_error_at, CASE WHEN s.rate_messages IS NOT NULL THEN d.window_started_at END)
                > clock_timestamp())
        AND (s.destination IS NULL OR s.destination = ANY (destinations)) AND s.id <> ALL (busy)
        AND EXISTS (SELECT FROM mill.notifications n WHERE n.subscription_id = s.id AND n.sent_at IS NULL
            AND n.dead_at IS NULL
            -- The first attempt is due at once, and no wait for the next one is longer than 22.5 minutes.
            AND (n.attempts = 0 OR n.next_attempt_at <= now() OR n.next_attempt_at > now() + interval '23 minutes'))
$$;
COMMENT ON FUNCTION mill.due_subscriptions IS
    'Returns the subscriptions that have due notifications, except those in busy: to channels, to tasks, and to these '
    'destinations';

CREATE OR REPLACE FUNCTION mill.notifications_due(destinations text[]) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Every worker polls this. Without subscriptions, the first query is the whole cost.
    RETURN EXISTS (SELECT FROM mill.subscriptions) AND (
        EXISTS (SELECT FROM mill.due_subscriptions(destinations, '{}'))
        OR EXISTS (SELECT FROM mill.subscriptions s JOIN mill.subscription_state d ON d.subscription_id = s.id
            WHERE s.enabled AND num_nonnulls(s.min_pending, s.min_age) > 0
                AND coalesce(d.backlog_checked_at NOT BETWEEN now() - interval '10 s' AND clock_timestamp(), true)));
END
$$;
COMMENT ON FUNCTION mill.notifications_due IS
    'Returns whether a worker with these destinations has notifications to send or backlogs to check';
GRANT EXECUTE ON FUNCTION mill.notifications_due TO mill_worker;

CREATE OR REPLACE FUNCTION mill.claim_messages(destinations text[], busy bigint[], max_subscriptions integer,
    incidents text[] DEFAULT '{}')
RETURNS TABLE (subscription_id bigint, subscription text, destination text, message_id uuid, ids bigint[],
    document jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found record;
BEGIN
    FOR found IN SELECT s, d FROM mill.subscriptions s JOIN mill.subscription_state d ON d.subscription_id = s.id
        WHERE s.destination IS NOT NULL AND s.id IN (SELECT mill.due_subscriptions(destinations, busy))
        ORDER BY random() LIMIT max_subscriptions FOR UPDATE OF d SKIP LOCKED
    LOOP
        -- A sender attempts these messages one after another, with a time limit of 10 s each.
        RETURN QUERY SELECT (found.s).id, (found.s).name::text, (found.s).destination::text, m.message_id, m.ids,
                m.document
            FROM mill.take_messages(found.s, found.d, 4, interval '60 s',
                (found.s).destination = ANY (incidents)) AS m;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.claim_messages IS
    'Claims messages to these destinations, up to four per subscription, for a minute. busy: subscriptions to leave '
    'out, because the caller is sending their messages. incidents: those of the destinations to which a recovery is a '
    'message of its own, because they may keep incidents';
GRANT EXECUTE ON FUNCTION mill.claim_messages TO mill_worker;

CREATE OR REPLACE FUNCTION mill.message_sent(subscription_id bigint, message_id uuid, ids bigint[]) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    marked boolean;
BEGIN
    UPDATE mill.notifications n SET sent_at = clock_timestamp(), dead_at = NULL, last_error = NULL
        WHERE n.id = ANY (ids) AND n.message_id = message_sent.message_id;
    marked := FOUND;
    UPDATE mill.subscription_state d SET failures = 0, last_error = NULL, last_error_at = NULL,
            last_sent_at = clock_timestamp(), messages_sent = d.messages_sent + 1,
            retry_at = CASE WHEN d.failures = 0 THEN d.retry_at END
        WHERE d.subscription_id = message_sent.subscription_id;
    RETURN marked;
END
$$;
COMMENT ON FUNCTION mill.message_sent IS
    'Records that a message was delivered. Returns false if another sender has claimed its notifications since';
GRANT EXECUTE ON FUNCTION mill.message_sent TO mill_worker;

CREATE OR REPLACE FUNCTION mill.message_failed(subscription_id bigint, message_id uuid, ids bigint[], error text,
    rejected boolean, retry_after interval DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.notifications n SET last_error = error,
            dead_at = CASE WHEN n.retry_until <= now() OR rejected AND n.attempts >= 10 THEN clock_timestamp() END,
            next_attempt_at = CASE WHEN rejected THEN now() + mill.delivery_backoff(n.attempts) ELSE now() END
        WHERE n.id = ANY (ids) AND n.message_id = message_failed.message_id AND n.sent_at IS NULL;
    UPDATE mill.subscription_state d SET failures = d.failures + 1, last_error = error,
            last_error_at = clock_timestamp(), retry_at = CASE WHEN rejected THEN d.retry_at
                -- Without retry_after, least would return the day.
                ELSE now() + greatest(mill.delivery_backoff(d.failures + 1),
                    CASE WHEN retry_after IS NOT NULL THEN least(retry_after, '1 day') END) END
        WHERE d.subscription_id = message_failed.subscription_id;
END
$$;
COMMENT ON FUNCTION mill.message_failed IS
    'Records that a message was not delivered. rejected: the receiver refuses this message, so the other messages of '
    'the subscription do not wait; after ten attempts its notifications are dead. Otherwise the whole subscription '
    'waits, at least retry_after. Notifications are dead after three days in either case';
GRANT EXECUTE ON FUNCTION mill.message_failed TO mill_worker;

CREATE OR REPLACE FUNCTION mill.message_released(message_id uuid, ids bigint[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE mill.notifications n SET attempts = n.attempts - 1, next_attempt_at = now()
    WHERE n.id = ANY (ids) AND n.message_id = message_released.message_id AND n.sent_at IS NULL
$$;
COMMENT ON FUNCTION mill.message_released IS 'Returns the notifications of a message that was not attempted';
GRANT EXECUTE ON FUNCTION mill.message_released TO mill_worker;

-- Inside the database -----------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.channel_payload(document jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    -- The server refuses payloads of 8000 bytes, and the subscription waits while the first one is refused. So every
    -- long value goes, whatever its key is: at most 25 values remain in any document.
    SELECT CASE WHEN octet_length(document::text) <= 7900 THEN document::text
        ELSE (SELECT jsonb_object_agg(e.key, e.value) || '{"truncated": true}'
            FROM jsonb_each(document - '{message,errors,events,samples,tags,jobs,note,reason}'::text[]) AS e
            WHERE octet_length(e.value::text) <= 250)::text END
$$;
COMMENT ON FUNCTION mill.channel_payload IS
    'Returns the payload of a NOTIFY. If the document is too long, omits its texts, its lists and any other '
    'value of more than 250 bytes, and adds "truncated"';

CREATE OR REPLACE FUNCTION mill.deliver(subscription mill.subscriptions, document jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_key uuid;
BEGIN
    IF subscription.channel IS NOT NULL THEN
        PERFORM pg_notify(subscription.channel, mill.channel_payload(document));
    ELSE
        -- The rights were checked when the subscription was made. Any role that may use the profile will do.
        SELECT mill.profile_key(p.key, r.oid) INTO found_key
            FROM mill.profiles p JOIN pg_roles r ON r.rolname = ANY (p.allowed)
            WHERE p.name = subscription.run_as LIMIT 1;
        -- Without a key, mill.submit enqueues a task without a profile.
        IF subscription.run_as IS NOT NULL AND NOT FOUND THEN
            RAISE EXCEPTION 'there is no profile "%" that a role may use', subscription.run_as USING ERRCODE = '22023';
        END IF;
        PERFORM mill.submit(subscription.statement, params => jsonb_build_array(document),
            options => jsonb_build_object('name', left('notify ' || subscription.name, 128),
                'queue', subscription.task_queue, 'profile', found_key, 'metadata',
                jsonb_build_object('pgmill_subscription', left(subscription.name, 512))));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.deliver IS
    'Delivers a message to a channel or as a task, in the caller''s transaction. Raises an error if the profile of the '
    'task does not exist';

CREATE OR REPLACE FUNCTION mill.deliver_in_database()
RETURNS TABLE (subscription text, kind text, messages integer, error text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found record;
    message record;
BEGIN
    -- Asynchronous commit is safe here: a crash loses the delivery and its record together, or neither.
    PERFORM set_config('synchronous_commit', 'off', true);
    FOR found IN SELECT s, d FROM mill.subscriptions s JOIN mill.subscription_state d ON d.subscription_id = s.id
        WHERE s.destination IS NULL AND s.id IN (SELECT mill.due_subscriptions('{}', '{}'))
        ORDER BY s.id LIMIT 20 FOR UPDATE OF d SKIP LOCKED
    LOOP
        subscription := (found.s).name;
        kind := CASE WHEN (found.s).channel IS NOT NULL THEN 'channel' ELSE 'task' END;
        messages := 0;
        error := NULL;
        BEGIN
            FOR message IN SELECT m.* FROM mill.take_messages(found.s, found.d, 500, interval '60 s', false) AS m LOOP
                PERFORM mill.deliver(found.s, message.document);
                PERFORM mill.message_sent((found.s).id, message.message_id, message.ids);
                messages := messages + 1;
            END LOOP;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS error = MESSAGE_TEXT;
            messages := 0;
            UPDATE mill.subscription_state d SET failures = d.failures + 1, last_error = error,
                    last_error_at = clock_timestamp(), retry_at = now() + mill.delivery_backoff(d.failures + 1),
                    -- The time of take_messages was rolled back.
                    window_started_at = CASE WHEN d.window_started_at > clock_timestamp() THEN now()
                        ELSE d.window_started_at END
                WHERE d.subscription_id = (found.s).id;
        END;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.deliver_in_database IS
    'Delivers due notifications to channels and as tasks, up to 500 per subscription. Returns the number of messages '
    'by subscription';
GRANT EXECUTE ON FUNCTION mill.deliver_in_database TO mill_worker;

-- Backlogs ----------------------------------------------------------------------------------------

-- A loose index scan finds the lanes. As in the claim, a range of one profile leaves only the index of
-- pending tasks. The head of a lane is its oldest task, unless a task was enqueued with an earlier due
-- time or returned to the queue. The scan of one queue ends at the first lane of the next one. A condition on
-- only_queue alone would read the index from its beginning, because the plan does not depend on the argument.
CREATE OR REPLACE FUNCTION mill.pending_by_queue(only_queue text, max_count integer)
RETURNS TABLE (queue text, pending bigint, oldest_age interval)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    WITH RECURSIVE lane (queue, priority, run_as) AS (
        (SELECT t.queue, t.priority, t.run_as FROM mill.tasks t
         WHERE t.state = 'pending' AND t.queue >= coalesce(only_queue, '')
         ORDER BY t.queue, t.priority, t.run_as LIMIT 1)
        UNION ALL
        SELECT next.queue, next.priority, next.run_as FROM lane CROSS JOIN LATERAL (
            SELECT t.queue, t.priority, t.run_as FROM mill.tasks t
            WHERE t.state = 'pending'
                AND (t.queue, t.priority, t.run_as) > (lane.queue, lane.priority, lane.run_as)
            ORDER BY t.queue, t.priority, t.run_as LIMIT 1) AS next
        WHERE only_queue IS NULL OR lane.queue = only_queue
    )
    SELECT l.queue::text, sum(c.count)::bigint, max(h.age)
        FROM (SELECT * FROM lane WHERE only_queue IS NULL OR lane.queue = only_queue LIMIT 1000) AS l
        CROSS JOIN LATERAL (SELECT count(*) AS count FROM (SELECT FROM mill.tasks t WHERE t.state = 'pending'
            AND t.queue = l.queue AND t.priority = l.priority AND t.run_as >= l.run_as AND t.run_as <= l.run_as
            ORDER BY t.run_as, t.id LIMIT max_count) AS few) AS c
        CROSS JOIN LATERAL (SELECT now() - t.due_at AS age FROM mill.tasks t WHERE t.state = 'pending'
            AND t.queue = l.queue AND t.priority = l.priority AND t.run_as >= l.run_as AND t.run_as <= l.run_as
            ORDER BY t.run_as, t.id LIMIT 1) AS h
    GROUP BY l.queue
$$;
COMMENT ON FUNCTION mill.pending_by_queue IS
    'Returns the queues with pending tasks, counting up to max_count tasks per lane, and the wait of the oldest task';

CREATE OR REPLACE FUNCTION mill.check_backlogs() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
DECLARE
    due bigint[];
    inserted integer;
BEGIN
    due := ARRAY(SELECT d.subscription_id FROM mill.subscription_state d
        WHERE d.subscription_id IN (SELECT x.id FROM mill.subscriptions x
                WHERE x.enabled AND num_nonnulls(x.min_pending, x.min_age) > 0)
            AND coalesce(d.backlog_checked_at NOT BETWEEN now() - interval '10 s' AND clock_timestamp(), true)
        FOR UPDATE OF d SKIP LOCKED);
    UPDATE mill.subscription_state d SET backlog_checked_at = now() WHERE d.subscription_id = ANY (due);
    -- Subscriptions with the same filter share one count. Nested loops are off, because these CTEs have no statistics.
    WITH subscribed AS MATERIALIZED (
        SELECT x.*, coalesce(x.queue, '') AS filter FROM mill.subscriptions x WHERE x.id = ANY (due)
    ), counted AS MATERIALIZED (
        SELECT u.filter, p.* FROM (SELECT s.filter, max(coalesce(s.min_pending, 1000)) AS max_count FROM subscribed s
            GROUP BY s.filter) AS u CROSS JOIN LATERAL mill.pending_by_queue(nullif(u.filter, ''), u.max_count) AS p
    ), found AS MATERIALIZED (
        SELECT s.id, s.name, c.queue, c.pending, c.oldest_age FROM subscribed s JOIN counted c ON c.filter = s.filter
            WHERE c.pending >= s.min_pending OR c.oldest_age >= s.min_age
    ), begun AS (
        INSERT INTO mill.backlog_notices (subscription_id, queue) SELECT f.id, f.queue FROM found f
        ON CONFLICT DO NOTHING RETURNING backlog_notices.subscription_id AS id, backlog_notices.queue
    ), ended AS (
        DELETE FROM mill.backlog_notices b WHERE b.subscription_id = ANY (due)
            AND NOT EXISTS (SELECT FROM found f WHERE f.id = b.subscription_id AND f.queue = b.queue)
        RETURNING b.subscription_id AS id, b.queue, b.began_at
    )
    INSERT INTO mill.notifications (subscription_id, event, document)
    SELECT n.id, 'queue_backlog', mill.notification_document('queue_backlog', n.name, n.document) FROM (
        SELECT f.id, f.name, jsonb_build_object('queue', f.queue, 'pending', f.pending, 'resolved', false,
            'oldest_seconds', round(extract(epoch FROM f.oldest_age)::numeric, 3)) AS document
        FROM begun b JOIN found f ON f.id = b.id AND f.queue = b.queue
        UNION ALL
        SELECT e.id, s.name, jsonb_build_object('queue', e.queue, 'resolved', true, 'seconds',
            round(extract(epoch FROM now() - e.began_at)::numeric, 3))
        FROM ended e JOIN subscribed s ON s.id = e.id) AS n;
    GET DIAGNOSTICS inserted = ROW_COUNT;
    RETURN inserted;
END
$$;
COMMENT ON FUNCTION mill.check_backlogs IS
    'Inserts a notification for each queue whose backlog began or ended, for subscriptions that were last checked more '
    'than 10 seconds ago. Returns the number of notifications';
GRANT EXECUTE ON FUNCTION mill.check_backlogs TO mill_worker;

-- schema/21_operator.sql --------------------------------------------------------------------------

-- Operator functions: cancel, retry, pause, resume, drain.
--
-- Limits, groups and priorities are in 04_capacity.sql, runs in 33_run_control.sql, schedules in
-- 28_schedules.sql.
--
-- Each function records the change in mill.audit.

CREATE OR REPLACE FUNCTION mill.cancel_task(id bigint, running boolean DEFAULT true) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
BEGIN
    SELECT t.* INTO task FROM mill.tasks t WHERE t.id = cancel_task.id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM mill.attempts a WHERE a.task_id = cancel_task.id)
            THEN 'finished' ELSE 'not found' END;
    END IF;
    IF task.state = 'running' AND NOT running THEN
        RETURN 'running';
    ELSIF task.state = 'running' THEN
        INSERT INTO mill.cancel_requests (task_id) VALUES (task.id) ON CONFLICT DO NOTHING;
        -- Cancels are so rare that the cost of a NOTIFY in a writing transaction does not matter.
        -- Without the notification, the worker sees the request with its next heartbeat.
        PERFORM pg_notify('mill', 'cancel');
        RETURN 'requested';
    END IF;
    PERFORM mill.prepare_history(0);
    PERFORM mill.record_attempt(task, 'cancelled', true,
        jsonb_build_object('message', format('cancelled by %s before it was claimed', session_user)));
    IF task.limits IS NOT NULL THEN
        PERFORM mill.release_permits(ARRAY[task.id], NULL);
    END IF;
    DELETE FROM mill.tasks t WHERE t.id = task.id;
    RETURN 'cancelled';
END
$$;
COMMENT ON FUNCTION mill.cancel_task IS
    'Cancels a task without an audit record, for mill.cancel and mill.cancel_open_tasks. Returns the same values as '
    'mill.cancel';

CREATE OR REPLACE FUNCTION mill.cancel(id bigint, running boolean DEFAULT true) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    answer text := mill.cancel_task(id, running);
BEGIN
    IF answer IN ('cancelled', 'requested') THEN
        PERFORM mill.record_audit('cancel', 'task ' || id, jsonb_build_object('result', answer));
    END IF;
    RETURN answer;
END
$$;
COMMENT ON FUNCTION mill.cancel IS
    'Cancels a task. Returns cancelled (the task was waiting), requested (the task is running, and its worker stops '
    'the statement), finished or not found. running => false leaves a running task alone and returns running';
GRANT EXECUTE ON FUNCTION mill.cancel TO mill_operator;

CREATE OR REPLACE FUNCTION mill.lock_task(id bigint) RETURNS mill.state
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live mill.state;
BEGIN
    SELECT t.state INTO live FROM mill.tasks t WHERE t.id = lock_task.id FOR NO KEY UPDATE;
    RETURN live;
END
$$;
COMMENT ON FUNCTION mill.lock_task IS
    'Locks a live task until the end of the transaction, and returns its state; null if the task is not live';

CREATE OR REPLACE FUNCTION mill.cancel_many(ids bigint[], only_state mill.state DEFAULT NULL)
RETURNS TABLE (id bigint, result text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    finished CONSTANT timestamptz := clock_timestamp();
    report CONSTANT jsonb := jsonb_build_object('message',
        format('cancelled by %s before it was claimed', session_user));
    cancelled bigint[];
BEGIN
    PERFORM mill.prepare_history(0);
    -- All tasks are locked in the order of their ids, whatever the order of the argument is: two calls with the same
    -- tasks would otherwise wait for each other.
    PERFORM FROM mill.tasks t WHERE t.id = ANY (ids) ORDER BY t.id FOR NO KEY UPDATE;
    -- Most waiting tasks have no limit, key or run. They end in one statement, without a call per task.
    WITH waiting AS MATERIALIZED (
        SELECT t AS task, t.id FROM mill.tasks t
        WHERE t.id = ANY (ids) AND t.state <> 'running' AND (only_state IS NULL OR t.state = only_state)
            AND t.limits IS NULL AND t.key IS NULL AND t.node IS NULL
        ORDER BY t.id FOR NO KEY UPDATE
    ), recorded AS (
        INSERT INTO mill.attempts
        SELECT r.* FROM waiting w
            CROSS JOIN LATERAL mill.attempt_row(w.task, finished, 'cancelled', true, NULL, report) AS r
    ), audited AS (
        INSERT INTO mill.audit (action, subject, detail)
        SELECT 'cancel', 'task ' || w.id, '{"result": "cancelled"}' FROM waiting w
    ), gone AS (
        DELETE FROM mill.tasks t USING waiting w WHERE t.id = w.id RETURNING t.id
    )
    SELECT array_agg(g.id) INTO cancelled FROM gone g;
    RETURN QUERY
        -- The snapshot of this statement is older than the locks that it takes, so the state is checked again.
        SELECT a.id, a.answer FROM (
            SELECT i.id, i.n, CASE WHEN c.id IS NOT NULL THEN 'cancelled'
                    WHEN only_state IS NULL
                        OR EXISTS (SELECT FROM mill.tasks t WHERE t.id = i.id AND t.state = only_state)
                            AND mill.lock_task(i.id) = only_state
                    THEN mill.cancel(i.id) ELSE 'changed' END AS answer
            FROM unnest(ids) WITH ORDINALITY AS i (id, n) LEFT JOIN unnest(cancelled) AS c (id) ON c.id = i.id
            -- The limits of the tasks are locked in this order, too. OFFSET keeps the order of the calls.
            ORDER BY i.id OFFSET 0) AS a
        ORDER BY a.n;
END
$$;
COMMENT ON FUNCTION mill.cancel_many IS
    'Cancels tasks in one transaction. Returns the result of mill.cancel for each task, in the given order. '
    'only_state: leaves tasks in another state alone and returns changed for them';
GRANT EXECUTE ON FUNCTION mill.cancel_many TO mill_operator;

CREATE OR REPLACE FUNCTION mill.task_of_attempt(last_attempt mill.attempts, chain bigint[]) RETURNS mill.tasks
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    statement CONSTANT text := last_attempt.statement;
    task mill.tasks;
BEGIN
    -- Copies the options of the task from the columns of the same names in history, by way of jsonb. The
    -- statement is copied separately, because it may be longer than jsonb allows (256 MB).
    last_attempt.statement := NULL;
    last_attempt.token := NULL;
    last_attempt.session_pid := NULL;
    last_attempt.result := NULL;
    task := jsonb_populate_record(NULL::mill.tasks, to_jsonb(last_attempt));
    task.id := last_attempt.task_id;
    task.statement := statement;
    task.due_at := clock_timestamp();
    task.state := mill.initial_state(NULL, chain);
    task.limits := chain;
    task.blocking_limit_id := chain[1];
    task.failures := 0;
    task.transient_failures := 0;
    task.crashes := 0;
    -- The receipt of the earlier attempts would end the task without running it.
    IF task.run_as <> '' THEN
        task.receipt := mill.new_receipt(task.run_as);
    END IF;
    RETURN task;
END
$$;
COMMENT ON FUNCTION mill.task_of_attempt IS
    'Returns the task that runs again after its last attempt, under the same id and with these limits';

CREATE OR REPLACE FUNCTION mill.ended_after(id bigint, at timestamptz) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM mill.attempts a
        WHERE a.task_id = ended_after.id AND a.final AND a.finished_at > ended_after.at)
$$;
COMMENT ON FUNCTION mill.ended_after IS 'Returns whether the task has ended after this time, for mill.retry_task';

CREATE OR REPLACE FUNCTION mill.insert_again(last_attempt mill.attempts) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    chain bigint[];
    task mill.tasks;
BEGIN
    PERFORM mill.check_routine(last_attempt.run_as, last_attempt.statement) WHERE last_attempt.run_as <> '';
    IF last_attempt.key IS NOT NULL THEN
        INSERT INTO mill.dedup_keys (key, task_id) VALUES (last_attempt.key, last_attempt.task_id)
            ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'another live task has the key "%"', last_attempt.key
                USING ERRCODE = '23505', HINT = 'Wait for that task, or cancel it.';
        END IF;
    END IF;
    DELETE FROM mill.cancel_requests r WHERE r.task_id = last_attempt.task_id;
    chain := mill.required_limits(last_attempt.queue, last_attempt.group_name, last_attempt.run_id,
        last_attempt.concurrency_key);
    task := mill.task_of_attempt(last_attempt, chain);
    INSERT INTO mill.tasks SELECT task.*;
END
$$;
COMMENT ON FUNCTION mill.insert_again IS
    'For mill.retry_task: inserts the task of its last attempt, with its key and its limits (-> pending | blocked). '
    'Raises unique_violation if the task is live, or if another live task has its key';

CREATE OR REPLACE FUNCTION mill.retry_task(id bigint, only_outcome mill.outcome) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live mill.state;
    last_attempt mill.attempts;
    answer text;
    chain bigint[];
BEGIN
    SELECT t.state, t.limits INTO live, chain FROM mill.tasks t WHERE t.id = retry_task.id FOR NO KEY UPDATE;
    IF live IS NOT NULL AND only_outcome IS NOT NULL THEN
        RETURN 'changed';
    ELSIF live = 'scheduled' THEN
        UPDATE mill.tasks t SET state = mill.initial_state(NULL, chain), blocking_limit_id = chain[1], due_at = now()
            WHERE t.id = retry_task.id;
        PERFORM mill.record_audit('retry', 'task ' || id, jsonb_build_object('result', 'brought forward'));
        RETURN 'brought forward';
    ELSIF live IS NOT NULL THEN
        RETURN live::text;
    END IF;
    SELECT a.* INTO last_attempt FROM mill.attempts a
        WHERE a.task_id = retry_task.id AND a.final ORDER BY a.finished_at DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN 'not found';
    ELSIF last_attempt.outcome <> only_outcome THEN
        RETURN 'changed';
    ELSIF last_attempt.node IS NULL AND (last_attempt.options).store_params = false THEN
        RAISE EXCEPTION 'the parameters of task % were not stored', id USING ERRCODE = '55000',
            HINT = 'Enqueue the task again, with its parameters.';
    ELSIF last_attempt.node IS NOT NULL THEN
        -- No other retry of the task gets the lock. One that had it before may have run the task already.
        PERFORM FROM mill.runs r WHERE r.id = last_attempt.run_id FOR NO KEY UPDATE;
        IF mill.ended_after(id, last_attempt.finished_at) THEN
            RETURN mill.retry_task(id, only_outcome);
        END IF;
        answer := mill.retry_run_task(last_attempt.run_id, last_attempt.name);
        IF answer = 'succeeded' THEN
            RAISE EXCEPTION 'task % has succeeded in run %', id, last_attempt.run_id USING ERRCODE = '55000',
                HINT = format('pgmill run rerun %s %L runs it and all tasks after it again.', last_attempt.run_id,
                    last_attempt.name);
        END IF;
        RETURN answer;
    END IF;
    PERFORM mill.insert_again(last_attempt);
    -- From here on, the primary key excludes other retries of the task. Since last_attempt was read, one may have run
    -- the task. Then the new attempt counts.
    IF mill.ended_after(id, last_attempt.finished_at) THEN
        DELETE FROM mill.tasks t WHERE t.id = retry_task.id;
        DELETE FROM mill.dedup_keys k WHERE k.key = last_attempt.key;
        RETURN mill.retry_task(id, only_outcome);
    END IF;
    PERFORM mill.record_audit('retry', 'task ' || id, jsonb_build_object('result', 'retried'));
    RETURN 'retried';
EXCEPTION WHEN unique_violation THEN
    -- A concurrent retry has already inserted the task.
    IF EXISTS (SELECT FROM mill.tasks t WHERE t.id = retry_task.id) THEN
        RETURN CASE WHEN only_outcome IS NULL THEN 'pending' ELSE 'changed' END;
    END IF;
    RAISE;
END
$$;
COMMENT ON FUNCTION mill.retry_task IS
    'Retries a task, for mill.retry and mill.retry_many. only_outcome: leaves the task alone if it is live or has '
    'another outcome, and returns changed; null: any outcome. Otherwise returns the same values as mill.retry';

CREATE OR REPLACE FUNCTION mill.retry(id bigint) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.retry_task(retry.id, NULL)
$$;
COMMENT ON FUNCTION mill.retry IS
    'For a finished task: runs it again under the same id, keeps the history of its attempts, and returns retried. If '
    'it belongs to a run, this is mill.retry_run_task; it then must not have succeeded. '
    'For a scheduled task: makes it due now and returns brought forward. For another live task: returns its state. '
    'Otherwise returns not found';
GRANT EXECUTE ON FUNCTION mill.retry TO mill_operator;

-- Without statistics, a scan of the history seems cheaper than one probe per task.
CREATE OR REPLACE FUNCTION mill.retry_many(ids bigint[], only_outcome mill.outcome DEFAULT NULL)
RETURNS TABLE (id bigint, result text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    retried bigint[];
    finished timestamptz[];
BEGIN
    -- With one snapshot for all statements, the check after the INSERT would find nothing.
    PERFORM mill.require_read_committed('mill.retry_many with only_outcome') WHERE only_outcome IS NOT NULL;
    -- Most finished tasks have no limit, key, run or profile. They return in one statement. mill.retry_task
    -- would take a subtransaction for each of them, and more than 64 of these slow down every snapshot.
    WITH plain AS MATERIALIZED (
        SELECT e.task_id, e.attempt FROM (
            SELECT DISTINCT ON (a.task_id) a.task_id, a AS attempt FROM mill.attempts a
            WHERE a.task_id = ANY (ids) AND a.final ORDER BY a.task_id, a.finished_at DESC) AS e
        WHERE (only_outcome IS NULL OR (e.attempt).outcome = only_outcome)
            AND num_nonnulls((e.attempt).node, (e.attempt).key, (e.attempt).group_name,
                (e.attempt).concurrency_key, ((e.attempt).options).store_params) = 0
            AND (e.attempt).run_as = ''
            AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = e.task_id)
            AND NOT EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = (e.attempt).queue)
    ), unrequested AS (
        DELETE FROM mill.cancel_requests r USING plain p WHERE r.task_id = p.task_id
    ), inserted AS (
        INSERT INTO mill.tasks
        SELECT t.* FROM plain p CROSS JOIN LATERAL mill.task_of_attempt(p.attempt, NULL) AS t
        -- A concurrent retry may have inserted the task.
        ON CONFLICT DO NOTHING RETURNING id
    )
    SELECT array_agg(p.task_id), array_agg((p.attempt).finished_at) INTO retried, finished
        FROM inserted i JOIN plain p ON p.task_id = i.id;
    -- As in mill.retry_task: other retries may have run some of these tasks since the snapshot of that statement.
    DELETE FROM mill.tasks t USING unnest(retried, finished) AS r (id, finished_at), mill.attempts a
        WHERE t.id = ANY (retried) AND r.id = t.id AND a.task_id = ANY (retried) AND a.task_id = r.id AND a.final
            AND a.finished_at > r.finished_at;
    retried := ARRAY(SELECT t.id FROM mill.tasks t WHERE t.id = ANY (retried));
    INSERT INTO mill.audit (action, subject, detail)
        SELECT 'retry', 'task ' || i, '{"result": "retried"}' FROM unnest(retried) AS i;
    RETURN QUERY
        WITH ended AS (
            SELECT DISTINCT ON (a.task_id) a.task_id, a.outcome FROM mill.attempts a
            WHERE a.task_id = ANY (ARRAY(SELECT i.id FROM unnest(ids) AS i (id) EXCEPT SELECT unnest(retried)))
                AND a.final ORDER BY a.task_id, a.finished_at DESC
        )
        SELECT i.id, CASE WHEN r.id IS NOT NULL THEN 'retried'
                WHEN only_outcome IS NULL OR (t.id IS NULL AND e.outcome = only_outcome)
                THEN mill.retry_task(i.id, only_outcome) ELSE 'changed' END
        FROM unnest(ids) WITH ORDINALITY AS i (id, n) LEFT JOIN unnest(retried) AS r (id) ON r.id = i.id
            LEFT JOIN mill.tasks t ON t.id = i.id LEFT JOIN ended e ON e.task_id = i.id
        ORDER BY i.n;
END
$$;
COMMENT ON FUNCTION mill.retry_many IS
    'Retries tasks in one transaction. Returns the result of mill.retry for each task, in the given order. '
    'only_outcome: leaves tasks alone that are live or have another outcome, and returns changed for them. It requires '
    'READ COMMITTED. If one task is refused, none is retried';
GRANT EXECUTE ON FUNCTION mill.retry_many TO mill_operator;

CREATE OR REPLACE FUNCTION mill.pause(queue text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO mill.queues (name, paused) VALUES (pause.queue, true)
        ON CONFLICT (name) DO UPDATE SET paused = true, changed_at = now();
    PERFORM mill.record_audit('pause', 'queue ' || queue);
END
$$;
COMMENT ON FUNCTION mill.pause IS 'Stops claims from a queue. Running tasks continue';
GRANT EXECUTE ON FUNCTION mill.pause TO mill_operator;

CREATE OR REPLACE FUNCTION mill.resume(queue text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.queues q SET paused = false, changed_at = now() WHERE q.name = resume.queue;
    IF FOUND THEN
        PERFORM mill.record_audit('resume', 'queue ' || queue);
    END IF;
    PERFORM pg_notify('mill', 'sweep');
END
$$;
COMMENT ON FUNCTION mill.resume IS 'Resumes claims from a paused queue';
GRANT EXECUTE ON FUNCTION mill.resume TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_shared_commit(queue text, budget interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before jsonb;
BEGIN
    SELECT jsonb_build_object('budget', q.shared_commit) INTO before FROM mill.queues q
        WHERE q.name = set_shared_commit.queue FOR NO KEY UPDATE;
    INSERT INTO mill.queues (name, shared_commit) VALUES (set_shared_commit.queue, budget)
        ON CONFLICT (name) DO UPDATE SET shared_commit = budget, changed_at = now();
    PERFORM mill.record_change('set_shared_commit', 'queue ' || queue, coalesce(before, '{}'),
        jsonb_build_object('budget', budget));
END
$$;
COMMENT ON FUNCTION mill.set_shared_commit IS
    'Sets the time budget (1 to 100 ms) within which readers run short tasks of a queue one after another in one '
    'transaction; null: each task commits alone. Workers apply the change within two seconds';
GRANT EXECUTE ON FUNCTION mill.set_shared_commit TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_queue_storage(queue text, params boolean DEFAULT NULL,
    output boolean DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before jsonb;
BEGIN
    SELECT jsonb_build_object('params', q.store_params, 'output', q.store_output) INTO before FROM mill.queues q
        WHERE q.name = set_queue_storage.queue FOR NO KEY UPDATE;
    INSERT INTO mill.queues AS q (name, store_params, store_output)
        VALUES (set_queue_storage.queue, coalesce(params, true), coalesce(output, true))
        ON CONFLICT (name) DO UPDATE SET store_params = coalesce(params, q.store_params),
            store_output = coalesce(output, q.store_output), changed_at = now();
    PERFORM mill.record_change('set_queue_storage', 'queue ' || queue, before,
        jsonb_strip_nulls(jsonb_build_object('params', params, 'output', output)));
END
$$;
COMMENT ON FUNCTION mill.set_queue_storage IS
    'Sets whether params, and output (notices, results, plans), of the tasks of a queue are stored after their end. '
    'Applies to tasks that are enqueued later; null: unchanged';
GRANT EXECUTE ON FUNCTION mill.set_queue_storage TO mill_operator;

CREATE OR REPLACE FUNCTION mill.remove_limit(kind mill.limit_kind, name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    gone bigint;
BEGIN
    IF remove_limit.kind = 'group' THEN
        RAISE EXCEPTION 'the limit of a group is removed with the group' USING ERRCODE = '22023',
            HINT = 'Use pgmill group remove.';
    END IF;
    PERFORM mill.require_read_committed('mill.remove_limit');
    -- The lock conflicts with that of mill.required_limits, so no task gets this limit meanwhile.
    SELECT l.id INTO gone FROM mill.limits l
        WHERE l.kind = remove_limit.kind AND l.name = remove_limit.name AND l.run_id = 0 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF EXISTS (SELECT FROM mill.tasks t WHERE t.limits @> ARRAY[gone]) THEN
        RAISE EXCEPTION 'the limit of % "%" has live tasks', remove_limit.kind, remove_limit.name
            USING ERRCODE = '55000', HINT = 'Wait until they have ended, or lift the limit with --max-running off.';
    END IF;
    DELETE FROM mill.limits l WHERE l.id = gone;
    PERFORM mill.record_audit('remove_limit', remove_limit.kind || ' ' || remove_limit.name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.remove_limit IS
    'Removes the limit of a queue or of a concurrency key. Returns false if there is none. Raises an error while live '
    'tasks have the limit. Requires READ COMMITTED';
GRANT EXECUTE ON FUNCTION mill.remove_limit TO mill_operator;

CREATE OR REPLACE FUNCTION mill.remove_queue(queue text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    limited boolean := mill.remove_limit('queue', remove_queue.queue);
BEGIN
    DELETE FROM mill.queues q WHERE q.name = remove_queue.queue;
    IF NOT FOUND THEN
        RETURN limited;
    END IF;
    PERFORM mill.record_audit('remove_queue', 'queue ' || queue);
    PERFORM pg_notify('mill', 'sweep');
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.remove_queue IS
    'Removes the settings of a queue: pause, shared commit and limits. Its tasks then run as in a queue without '
    'settings. Returns false if the queue has no settings';
GRANT EXECUTE ON FUNCTION mill.remove_queue TO mill_operator;

CREATE OR REPLACE FUNCTION mill.drain(worker_id uuid, draining boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.workers w SET draining = drain.draining WHERE w.id = drain.worker_id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('mill', 'heartbeat');
    PERFORM mill.record_audit('drain', 'worker ' || worker_id, jsonb_build_object('draining', draining));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.drain IS
    'Makes a worker stop claiming tasks, or resume (draining => false). Returns false if the worker does not exist';
GRANT EXECUTE ON FUNCTION mill.drain TO mill_operator;

-- schema/22_subscriptions.sql ---------------------------------------------------------------------

-- Subscriptions: functions for operators, and status for viewers.
--
-- Each function records the change in mill.audit.

CREATE OR REPLACE FUNCTION mill.check_filters(subscription mill.subscriptions) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong record;
BEGIN
    -- A filter that an event does not have matches nothing.
    SELECT e.event, f.filter, a.allowed INTO wrong
        FROM unnest(subscription.events) AS e(event)
            CROSS JOIN LATERAL (SELECT CASE
                WHEN e.event IN ('attempt_failed', 'task_failed', 'approval_needed')
                    THEN '{queue,task,job,schedule,tag}'
                WHEN e.event IN ('run_failed', 'run_succeeded', 'run_recovered', 'late', 'schedule_missed')
                    THEN '{job,schedule,tag}'
                WHEN e.event = 'queue_backlog' THEN '{queue}' ELSE '{}' END::text[] AS allowed) AS a
            CROSS JOIN LATERAL (VALUES ('queue', subscription.queue::text), ('task', subscription.task),
                ('job', subscription.job), ('schedule', subscription.schedule), ('tag', subscription.tag))
                AS f(filter, value)
        WHERE f.value IS NOT NULL AND f.filter <> ALL (a.allowed) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'event % has no %', wrong.event, wrong.filter USING ERRCODE = '22023',
            HINT = CASE WHEN wrong.allowed = '{}' THEN 'Use another subscription, without filters, for this event.'
                ELSE format('Its filters are %s. Use another subscription for this event.',
                    array_to_string(wrong.allowed, ', ')) END;
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_filters IS
    'Raises an error if an event of the subscription lacks the subject of a filter, for mill.set_subscription';

CREATE OR REPLACE FUNCTION mill.check_subscription(subscription mill.subscriptions) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kinds integer := num_nonnulls(subscription.destination, subscription.channel, subscription.statement);
BEGIN
    IF coalesce(cardinality(subscription.events), 0) = 0 THEN
        RAISE EXCEPTION 'subscription "%" has no events', subscription.name USING ERRCODE = '22023',
            HINT = format('Set events to one or more of %s.',
                array_to_string(array_remove(enum_range(NULL::mill.notify_event), 'test'), ', '));
    ELSIF 'test' = ANY (subscription.events) THEN
        RAISE EXCEPTION 'test is not an event to subscribe to' USING ERRCODE = '22023',
            HINT = 'Every subscription receives its tests: SELECT mill.test_subscription(name).';
    ELSIF kinds <> 1 THEN
        RAISE EXCEPTION 'subscription "%" has % receivers; it needs exactly one', subscription.name, kinds
            USING ERRCODE = '22023', HINT = 'Set one of destination, channel and statement.';
    ELSIF subscription.channel = 'mill' THEN
        RAISE EXCEPTION 'channel mill is the channel of the workers' USING ERRCODE = '22023';
    ELSIF 'queue_backlog' = ANY (subscription.events) <>
        (num_nonnulls(subscription.min_pending, subscription.min_age) > 0)
    THEN
        RAISE EXCEPTION 'min_pending and min_age are the thresholds of queue_backlog' USING ERRCODE = '22023',
            HINT = 'With queue_backlog, set at least one of them; without it, none.';
    ELSIF subscription.statement IS NULL AND num_nonnulls(subscription.task_queue, subscription.run_as) > 0 THEN
        RAISE EXCEPTION 'task_queue and run_as are settings of a statement' USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_filters(subscription);
END
$$;
COMMENT ON FUNCTION mill.check_subscription IS
    'Raises an error if the settings of a subscription contradict each other, for mill.set_subscription';

CREATE OR REPLACE FUNCTION mill.with_subscription_options(subscription mill.subscriptions, options jsonb)
RETURNS mill.subscriptions
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    put mill.subscriptions := subscription;
BEGIN
    -- A new receiver replaces the former one.
    IF num_nonnulls(options->>'destination', options->>'channel', options->>'statement') > 0 THEN
        put.destination := NULL;
        put.channel := NULL;
        put.statement := NULL;
        IF options->>'statement' IS NULL THEN
            put.task_queue := NULL;
            put.run_as := NULL;
        END IF;
    END IF;
    put := jsonb_populate_record(put, options);
    put.enabled := coalesce(put.enabled, true);
    put.events := ARRAY(SELECT DISTINCT e FROM unnest(put.events) AS e ORDER BY e);
    put.run_as := nullif(put.run_as, '');
    put.rate_period := CASE WHEN put.rate_messages IS NOT NULL THEN coalesce(put.rate_period, '1 minute') END;
    put.changed_at := now();
    RETURN put;
END
$$;
COMMENT ON FUNCTION mill.with_subscription_options IS
    'Returns the subscription with these options, for mill.set_subscription. Omitted options are unchanged';

CREATE OR REPLACE FUNCTION mill.set_subscription(name text, options jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    put mill.subscriptions;
    before jsonb;
    existed boolean;
BEGIN
    PERFORM mill.check_keys(options, '{events,queue,job,schedule,tag,task,destination,channel,statement,task_queue,
        run_as,min_pending,min_age,rate_messages,rate_period,enabled,description}');
    SELECT s.* INTO put FROM mill.subscriptions s WHERE s.name = set_subscription.name FOR UPDATE;
    existed := FOUND;
    IF existed THEN
        before := to_jsonb(put) - 'statement';
    ELSE
        put.name := set_subscription.name;
        put.enabled := true;
        put.created_by := session_user;
        put.created_at := now();
        -- Messages to people are limited, unless the caller sets another limit or none.
        IF options->>'destination' IS NOT NULL THEN
            put.rate_messages := 10;
            put.rate_period := '1 minute';
        END IF;
    END IF;
    put := mill.with_subscription_options(put, options);
    PERFORM mill.check_subscription(put);
    IF put.statement IS NOT NULL THEN
        put.statement := mill.check_statement(put.statement, '[{}]');
    END IF;
    IF put.run_as IS NOT NULL THEN
        PERFORM mill.check_profile(put.run_as), mill.check_routine(put.run_as, put.statement);
    END IF;
    IF existed THEN
        IF before - 'changed_at' = to_jsonb(put) - '{statement,changed_at}'::text[]
            AND NOT EXISTS (SELECT FROM mill.subscriptions s
                WHERE s.id = put.id AND s.statement IS DISTINCT FROM put.statement)
        THEN
            RETURN false;
        END IF;
        UPDATE mill.subscriptions s SET (events, queue, job, schedule, tag, task, destination, channel, statement,
                task_queue, run_as, min_pending, min_age, rate_messages, rate_period, enabled, description, changed_at)
            = (put.events, put.queue, put.job, put.schedule, put.tag, put.task, put.destination, put.channel,
                put.statement, put.task_queue, put.run_as, put.min_pending, put.min_age, put.rate_messages,
                put.rate_period, put.enabled, put.description, put.changed_at)
            WHERE s.id = put.id;
        UPDATE mill.subscription_state d SET retry_at = NULL WHERE d.subscription_id = put.id;
    ELSE
        INSERT INTO mill.subscriptions (name, events, queue, job, schedule, tag, task, destination, channel, statement,
                task_queue, run_as, min_pending, min_age, rate_messages, rate_period, enabled, description)
            VALUES (put.name, put.events, put.queue, put.job, put.schedule, put.tag, put.task, put.destination,
                put.channel, put.statement, put.task_queue, put.run_as, put.min_pending, put.min_age,
                put.rate_messages, put.rate_period, put.enabled, put.description)
            RETURNING id INTO put.id;
        INSERT INTO mill.subscription_state (subscription_id) VALUES (put.id);
    END IF;
    -- A backlog that the subscription no longer watches is not reported as ended.
    DELETE FROM mill.backlog_notices b WHERE b.subscription_id = put.id
        AND (num_nonnulls(put.min_pending, put.min_age) = 0 OR b.queue IS DISTINCT FROM coalesce(put.queue, b.queue));
    PERFORM mill.record_change('set_subscription', 'subscription ' || put.name, before, options - 'statement');
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.set_subscription IS
    'Creates or changes a subscription. Returns whether anything changed. options: {"events": ["task_failed", …], '
    'filters "queue", "job", "schedule", "tag", "task"; one of "destination" (configured at workers), "channel" '
    '(NOTIFY) and "statement" (a task, with "task_queue" and "run_as"); thresholds of queue_backlog "min_pending", '
    '"min_age"; "rate_messages" per "rate_period"; "enabled", "description"}. Omitted options are unchanged, null '
    'removes an option';
GRANT EXECUTE ON FUNCTION mill.set_subscription TO mill_operator;

CREATE OR REPLACE FUNCTION mill.remove_subscription(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    gone bigint;
BEGIN
    DELETE FROM mill.subscriptions s WHERE s.name = remove_subscription.name RETURNING s.id INTO gone;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM mill.subscription_state d WHERE d.subscription_id = gone;
    DELETE FROM mill.backlog_notices b WHERE b.subscription_id = gone;
    -- mill.prune_notifications deletes the ones that were sent.
    DELETE FROM mill.notifications n WHERE n.subscription_id = gone AND n.sent_at IS NULL AND n.dead_at IS NULL;
    DELETE FROM mill.notifications n WHERE n.subscription_id = gone AND n.dead_at IS NOT NULL;
    PERFORM mill.record_audit('remove_subscription', 'subscription ' || remove_subscription.name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.remove_subscription IS
    'Removes a subscription and its undelivered notifications. Returns false if it does not exist';
GRANT EXECUTE ON FUNCTION mill.remove_subscription TO mill_operator;

CREATE OR REPLACE FUNCTION mill.enable_subscription(name text, enabled boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    UPDATE mill.subscriptions s SET enabled = enable_subscription.enabled, changed_at = now()
        WHERE s.name = enable_subscription.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_audit('enable_subscription', 'subscription ' || enable_subscription.name,
        jsonb_build_object('enabled', enable_subscription.enabled));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.enable_subscription IS
    'Enables or disables a subscription. A disabled one gets no notifications, and those it has are not sent. Returns '
    'false if it does not exist';
GRANT EXECUTE ON FUNCTION mill.enable_subscription TO mill_operator;

CREATE OR REPLACE FUNCTION mill.test_subscription(name text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    s mill.subscriptions;
    inserted bigint;
BEGIN
    SELECT x.* INTO s FROM mill.subscriptions x WHERE x.name = test_subscription.name;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF NOT s.enabled THEN
        RAISE EXCEPTION 'subscription "%" is disabled', s.name USING ERRCODE = '55000',
            HINT = 'Enable it with pgmill subscription enable.';
    END IF;
    INSERT INTO mill.notifications (subscription_id, event, document)
        VALUES (s.id, 'test', mill.notification_document('test', s.name,
            jsonb_build_object('requested_by', coalesce(left(nullif(current_setting('mill.actor', true), ''), 200),
                session_user))))
        RETURNING id INTO inserted;
    UPDATE mill.subscription_state d SET retry_at = NULL WHERE d.subscription_id = s.id;
    PERFORM mill.record_audit('test_subscription', 'subscription ' || s.name);
    RETURN inserted;
END
$$;
COMMENT ON FUNCTION mill.test_subscription IS
    'Sends a message of event test to a subscription. Returns the id of the notification; null: the subscription does '
    'not exist';
GRANT EXECUTE ON FUNCTION mill.test_subscription TO mill_operator;

CREATE OR REPLACE FUNCTION mill.retry_notifications(subscription text DEFAULT NULL, ids bigint[] DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    chosen bigint[];
    retried integer;
BEGIN
    chosen := ARRAY(SELECT s.id FROM mill.subscriptions s
        WHERE retry_notifications.subscription IS NULL OR s.name = retry_notifications.subscription);
    UPDATE mill.notifications n SET dead_at = NULL, attempts = 0, next_attempt_at = now(),
            retry_until = now() + interval '3 days'
        WHERE n.subscription_id = ANY (chosen) AND n.dead_at IS NOT NULL
            AND (retry_notifications.ids IS NULL OR n.id = ANY (retry_notifications.ids));
    GET DIAGNOSTICS retried = ROW_COUNT;
    -- What is not dead and waits because of a failure is attempted now, too.
    UPDATE mill.subscription_state d SET retry_at = NULL WHERE d.subscription_id = ANY (chosen) AND d.failures > 0;
    PERFORM mill.record_audit('retry_notifications', coalesce('subscription ' || retry_notifications.subscription,
        'subscriptions'), jsonb_build_object('notifications', retried));
    RETURN retried;
END
$$;
COMMENT ON FUNCTION mill.retry_notifications IS
    'Attempts dead notifications again: those with these ids, of this subscription, or all. Ends the wait after '
    'failures of these subscriptions. Returns the number of dead notifications';
GRANT EXECUTE ON FUNCTION mill.retry_notifications TO mill_operator;

-- Status ------------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW mill.subscription_status AS
    SELECT s.id, s.name, s.events, s.queue, s.job, s.schedule, s.tag, s.task,
        CASE WHEN s.destination IS NOT NULL THEN 'destination' WHEN s.channel IS NOT NULL THEN 'channel'
            ELSE 'task' END AS kind,
        s.destination, s.channel, CASE WHEN (SELECT mill.sees_statements()) THEN s.statement END AS statement,
        s.task_queue, s.run_as, s.min_pending, s.min_age, s.rate_messages, s.rate_period, s.enabled, s.description,
        s.created_by, s.created_at, s.changed_at, d.messages_sent, d.last_sent_at, d.failures, d.last_error,
        d.last_error_at, d.retry_at, w.pending, w.oldest_pending_at, x.dead,
        CASE WHEN s.destination IS NOT NULL THEN (SELECT count(*) FROM mill.workers v
            WHERE s.destination = ANY (v.destinations) AND now() - v.heartbeat_at < v.orphan_timeout) END AS workers
    FROM mill.subscriptions s JOIN mill.subscription_state d ON d.subscription_id = s.id
        CROSS JOIN LATERAL (SELECT count(*) AS pending, min(p.created_at) AS oldest_pending_at
            FROM (SELECT n.created_at FROM mill.notifications n WHERE n.subscription_id = s.id AND n.sent_at IS NULL
                AND n.dead_at IS NULL ORDER BY n.id LIMIT 10000) AS p) AS w
        CROSS JOIN LATERAL (SELECT count(*) AS dead FROM (SELECT FROM mill.notifications n
            WHERE n.subscription_id = s.id AND n.dead_at IS NOT NULL LIMIT 10000) AS p) AS x;
COMMENT ON VIEW mill.subscription_status IS
    'Subscriptions with their settings and the state of the delivery. pending, dead: number of notifications, at most '
    '10000. workers: number of live workers that have the destination';
GRANT SELECT ON mill.subscription_status TO mill_worker;

CREATE OR REPLACE VIEW mill.visible_notifications AS
    SELECT n.id, n.subscription_id, coalesce(s.name, n.document->>'subscription') AS subscription, n.event,
        CASE WHEN (SELECT mill.sees_statements()) THEN n.document ELSE n.document - '{message,errors}'::text[]
            END AS document,
        CASE WHEN n.sent_at IS NOT NULL THEN 'sent' WHEN n.dead_at IS NOT NULL THEN 'dead' ELSE 'pending' END AS state,
        n.created_at, n.next_attempt_at, n.attempts, n.last_error, n.sent_at, n.dead_at
    FROM mill.notifications n LEFT JOIN mill.subscriptions s ON s.id = n.subscription_id;
COMMENT ON VIEW mill.visible_notifications IS
    'Notifications for mill_viewer: pending, sent within a day, or dead. Hides error messages if '
    'settings.hide_statements is set';

-- schema/23_task_changes.sql ----------------------------------------------------------------------

-- Changes of waiting tasks: -> scheduled | blocked | pending.
--
-- A task that gets other limits or another due time gives its permits back and begins again, like a new task. A
-- task that gets into a lane behind the watermarks of workers is found by their next sweep.

CREATE OR REPLACE FUNCTION mill.apply_change(task mill.tasks, changes jsonb) RETURNS mill.tasks
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    result mill.tasks;
BEGIN
    PERFORM mill.check_keys(changes, '{due_at,group,max_attempts,params,priority,queue,timeout}');
    -- The domains of columns and attributes check the values.
    result := jsonb_populate_record(task, changes - 'group' || CASE WHEN changes ? 'group'
        THEN jsonb_build_object('group_name', changes->'group') ELSE '{}' END);
    IF changes ?| '{max_attempts,timeout}' THEN
        result.options := jsonb_populate_record(task.options, changes);
        IF (result.options).at_most_once THEN
            PERFORM mill.check_at_most_once(result.options);
        END IF;
        result.options := CASE WHEN NOT result.options IS NULL THEN result.options END;
    END IF;
    IF changes ? 'priority' AND result.priority IS NULL THEN
        result.priority := coalesce((SELECT g.priority FROM mill.groups g WHERE g.name = result.group_name), 'normal');
    END IF;
    result.queue := coalesce(result.queue, 'default');
    result.due_at := coalesce(result.due_at, now());
    IF changes ? 'params' THEN
        PERFORM mill.check_statement(task.statement, result.params);
        -- The params decide what the login of the profile does.
        PERFORM mill.check_profile(task.run_as) WHERE task.run_as <> '';
    END IF;
    IF result.queue <> task.queue OR changes ? 'params' THEN
        result.options := mill.resolve_options(result.options, result.queue, result.params);
    END IF;
    RETURN result;
END
$$;
COMMENT ON FUNCTION mill.apply_change IS
    'Returns the task with these changes, before its state is computed, for mill.change_waiting_task. Raises an error '
    'if a key or a value is invalid';

CREATE OR REPLACE FUNCTION mill.changeable(task mill.tasks) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    -- The audit is kept longer than history and is open to viewers, so it gets a hash of the params.
    SELECT jsonb_build_object('queue', task.queue, 'priority', task.priority, 'due_at', task.due_at, 'params_md5',
        md5(task.params::text), 'max_attempts', (mill.effective(task.options)).max_attempts,
        'timeout', (task.options).timeout, 'group', task.group_name)
$$;
COMMENT ON FUNCTION mill.changeable IS 'Returns the options of a task that mill.change_task can change, for its audit';

CREATE OR REPLACE FUNCTION mill.change_waiting_task(id bigint, changes jsonb) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    result mill.tasks;
    before jsonb;
    after jsonb;
BEGIN
    SELECT t.* INTO task FROM mill.tasks t WHERE t.id = change_waiting_task.id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM mill.attempts a WHERE a.task_id = change_waiting_task.id)
            THEN 'finished' ELSE 'not found' END;
    ELSIF task.state = 'running' THEN
        RETURN 'running';
    END IF;
    result := mill.apply_change(task, changes);
    result.limits := mill.required_limits(result.queue, result.group_name, result.run_id, result.concurrency_key);
    IF task.limits[1] <= 0 AND result.limits[1] <= 0 THEN
        result.limits[1] := task.limits[1];
    END IF;
    before := mill.changeable(task);
    after := (SELECT jsonb_object_agg(n.key, n.value) FROM jsonb_each(mill.changeable(result)) AS n
        WHERE n.value <> before->n.key);
    IF after IS NULL THEN
        RETURN 'unchanged';
    END IF;
    IF result.limits IS DISTINCT FROM task.limits OR (result.due_at > now()) <> (task.state = 'scheduled') THEN
        PERFORM mill.release_permits(ARRAY[task.id], NULL) WHERE task.limits IS NOT NULL;
        result.state := mill.initial_state(result.due_at, result.limits);
        result.blocking_limit_id := CASE WHEN result.state = 'blocked' THEN result.limits[1] END;
        result.start_by := NULL;
    END IF;
    UPDATE mill.tasks t SET priority = result.priority, queue = result.queue, due_at = result.due_at,
            params = result.params, options = result.options, group_name = result.group_name,
            limits = result.limits, state = result.state, blocking_limit_id = result.blocking_limit_id,
            start_by = result.start_by
        WHERE t.id = task.id;
    IF task.node IS NOT NULL THEN
        -- A retry in the run copies the task from here. mill.advance_run relies on the lock.
        PERFORM FROM mill.runs r WHERE r.id = task.run_id FOR NO KEY UPDATE;
        UPDATE mill.run_tasks r SET priority = result.priority, queue = result.queue, options = result.options,
                params = CASE WHEN changes ? 'params' THEN result.params ELSE r.params END,
                takes_results = r.takes_results AND NOT changes ? 'params', group_name = result.group_name
            WHERE r.run_id = task.run_id AND r.node = task.node;
    END IF;
    PERFORM mill.record_change('change_task', 'task ' || task.id, before, after);
    RETURN 'updated';
END
$$;
COMMENT ON FUNCTION mill.change_waiting_task IS
    'Changes a task that waits, for mill.change_task and mill.change_tasks. Returns updated, unchanged, running, '
    'finished or not found';

CREATE OR REPLACE FUNCTION mill.change_task(id bigint, changes jsonb) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    answer text := mill.change_waiting_task(id, changes);
BEGIN
    IF answer = 'running' THEN
        RAISE EXCEPTION 'task % is running', id USING ERRCODE = '55000',
            HINT = 'Only a task that waits can be changed. Wait until it has ended, or cancel it and enqueue it again.';
    ELSIF answer = 'updated' THEN
        PERFORM pg_notify('mill', 'sweep');
    END IF;
    RETURN answer;
END
$$;
COMMENT ON FUNCTION mill.change_task IS
    'Changes a task that is scheduled, blocked or pending: {"priority", "queue", "due_at" (null: now), "params", '
    '"max_attempts", "timeout" (null: none), "group" (null: none)}; other keys raise an error, and keys that are '
    'missing stay as they are. A task of a run keeps the changes in a retry. Returns updated, unchanged, finished or '
    'not found. Raises an error if the task is running';
GRANT EXECUTE ON FUNCTION mill.change_task TO mill_operator;

CREATE OR REPLACE FUNCTION mill.change_tasks(ids bigint[], changes jsonb, only_state mill.state DEFAULT NULL)
RETURNS TABLE (id bigint, result text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_column
BEGIN
    -- In ascending order, as all statements that lock several tasks do.
    FOR id IN SELECT i FROM unnest(ids) AS i ORDER BY i LOOP
        result := CASE WHEN mill.lock_task(id) <> only_state THEN 'changed'
            ELSE mill.change_waiting_task(id, changes) END;
        RETURN NEXT;
    END LOOP;
    PERFORM pg_notify('mill', 'sweep');
END
$$;
COMMENT ON FUNCTION mill.change_tasks IS
    'Changes tasks in one transaction, as mill.change_task does. Returns its result for each task, in the order of '
    'their ids; running for a task that is running. only_state: leaves tasks in another state alone and returns '
    'changed for them';
GRANT EXECUTE ON FUNCTION mill.change_tasks TO mill_operator;

-- schema/24_task_purge.sql ------------------------------------------------------------------------

-- Purge: all waiting tasks of a queue -> finished.

CREATE OR REPLACE FUNCTION mill.purge_queue(queue text, max_count integer DEFAULT 500, after bigint DEFAULT 0,
    up_to bigint DEFAULT NULL, OUT cancelled bigint, OUT last_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    ids bigint[];
BEGIN
    -- The calls of a purge together walk the primary key once. A task that another transaction has locked is being
    -- claimed or changed, so it is left alone.
    SELECT array_agg(w.id ORDER BY w.id) INTO ids
    FROM (
        SELECT t.id FROM mill.tasks t
        WHERE t.queue = purge_queue.queue AND t.state <> 'running' AND t.id > coalesce(after, 0)
            AND t.id <= coalesce(up_to, 9223372036854775807)
        ORDER BY t.id LIMIT max_count FOR NO KEY UPDATE SKIP LOCKED
    ) AS w;
    last_id := ids[cardinality(ids)];
    SELECT count(*) FILTER (WHERE c.result = 'cancelled') INTO cancelled FROM mill.cancel_many(ids) AS c;
    IF cancelled > 0 THEN
        PERFORM mill.record_audit('purge_queue', 'queue ' || queue, jsonb_build_object('cancelled', cancelled));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.purge_queue IS
    'Cancels up to max_count tasks of the queue that are scheduled, blocked or pending, in the order of their ids. '
    'after, up_to: only ids above and up to these (null: no bound). Tasks that another transaction has locked are '
    'skipped. Returns the number of cancelled tasks, and the last id, with which to call again; null if no task was '
    'found';
GRANT EXECUTE ON FUNCTION mill.purge_queue TO mill_operator;

-- schema/25_jobs.sql ------------------------------------------------------------------------------

-- Jobs: named sets of tasks with edges.
--
-- A job is a definition. Each run copies it (29_runs.sql), so a change affects only later runs. Nothing
-- is deleted: tasks and edges that a new definition omits are disabled. mill.check_job ensures that a
-- job has no cycle, and that a task uses only results of tasks that it waits for.

-- Tables ------------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.jobs (
    name mill.label PRIMARY KEY CONSTRAINT job_name_plain CHECK (name !~ '[,[:cntrl:]]' AND btrim(name) = name),
    description text,
    category text,
    frequency text,
    tags text[],
    metadata jsonb CONSTRAINT metadata_is_object CHECK (jsonb_typeof(metadata) = 'object'),
    priority mill.priority,
    expected_duration interval CONSTRAINT expected_duration_range
        CHECK (expected_duration BETWEEN '1 millisecond' AND '365 days'),
    deadline interval CONSTRAINT deadline_range
        CHECK (deadline BETWEEN '1 millisecond' AND '365 days'),
    run_timeout interval CONSTRAINT run_timeout_range
        CHECK (run_timeout BETWEEN '1 millisecond' AND '365 days'),
    of_schedule boolean NOT NULL DEFAULT false,
    version integer NOT NULL DEFAULT 1,
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT session_user,
    disabled_at timestamptz
);
COMMENT ON TABLE mill.jobs IS 'Jobs: named sets of tasks with edges';
COMMENT ON COLUMN mill.jobs.category IS 'Free-text category';
COMMENT ON COLUMN mill.jobs.frequency IS 'Intended frequency as free text. It does not schedule anything';
COMMENT ON COLUMN mill.jobs.priority IS
    'Default priority of the tasks of the job. A priority of the task overrides it';
COMMENT ON COLUMN mill.jobs.of_schedule IS
    'Whether the job was created from the statement of a schedule. Such a job changes only with its schedule';
COMMENT ON COLUMN mill.jobs.version IS
    'Version of the definition: 1 when the job is created, one more with each change';
COMMENT ON COLUMN mill.jobs.tags IS 'Tags of the runs of the job. A run also gets the tags of its schedule; null: none';
COMMENT ON COLUMN mill.jobs.metadata IS
    'Metadata of the runs of the job. For the same key, the metadata of the schedule takes precedence; null: none';
COMMENT ON COLUMN mill.jobs.disabled_at IS 'Time since which the job cannot start runs; null: enabled';
CREATE UNIQUE INDEX IF NOT EXISTS jobs_any_case ON mill.jobs (lower(name));

CREATE TABLE IF NOT EXISTS mill.job_tasks (
    job mill.label NOT NULL REFERENCES mill.jobs,
    name mill.label NOT NULL,
    description text,
    enabled boolean NOT NULL DEFAULT true,
    statement mill.statement NOT NULL,
    params jsonb,
    run_as mill.profile_name NOT NULL DEFAULT '',
    queue mill.queue_name NOT NULL DEFAULT 'default',
    priority mill.priority,
    group_name mill.label,
    concurrency_key mill.label,
    expected_duration interval CONSTRAINT expected_duration_range
        CHECK (expected_duration BETWEEN '1 millisecond' AND '365 days'),
    options mill.task_options,
    join_mode mill.join_mode NOT NULL DEFAULT 'all',
    ignore_failure boolean NOT NULL DEFAULT false,
    approval boolean NOT NULL DEFAULT false,
    approval_note text,
    disabled_at timestamptz,
    PRIMARY KEY (job, name)
);
COMMENT ON TABLE mill.job_tasks IS 'Tasks of jobs';
COMMENT ON COLUMN mill.job_tasks.params IS
    'As in mill.tasks. {"$param": "day"} refers to a parameter of the run, {"$result": "parent", "column": "n"} to a '
    'column of the first row that a parent returned';
COMMENT ON COLUMN mill.job_tasks.ignore_failure IS 'Whether a run succeeds even if this task fails';
COMMENT ON COLUMN mill.job_tasks.join_mode IS
    'all: ready when every edge is satisfied. any: ready when the first edge is satisfied';
COMMENT ON COLUMN mill.job_tasks.disabled_at IS
    'Time since which the definition of the job does not list the task, so that new runs omit it; null: it is listed';
COMMENT ON COLUMN mill.job_tasks.enabled IS
    'Whether new runs include the task. A new definition of the job that does not set it keeps it';

CREATE OR REPLACE VIEW mill.visible_job_tasks AS
    SELECT x.job, x.name, x.description, x.queue, x.priority, x.group_name, x.concurrency_key,
        x.ignore_failure, x.join_mode, x.run_as, x.disabled_at,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.statement END AS statement,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.params END AS params,
        x.enabled, x.expected_duration, x.approval, x.approval_note, (x.options).timeout, (x.options).tags,
        (x.options).metadata, x.options, (mill.effective(x.options)).*
    FROM mill.job_tasks x;
COMMENT ON VIEW mill.visible_job_tasks IS
    'mill.job_tasks for mill_viewer. Hides statements and params if settings.hide_statements is set';

CREATE TABLE IF NOT EXISTS mill.job_edges (
    job mill.label NOT NULL REFERENCES mill.jobs,
    child mill.label NOT NULL,
    parent mill.label NOT NULL,
    expected mill.expected NOT NULL DEFAULT 'succeeded',
    disabled_at timestamptz,
    PRIMARY KEY (job, child, parent)
);
COMMENT ON TABLE mill.job_edges IS 'Dependencies between tasks of a job';
COMMENT ON COLUMN mill.job_edges.disabled_at IS 'Time since which new runs omit the edge; null: enabled';

-- Definition and checks ---------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.without_nulls(document jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_object_agg(e.key, e.value), '{}') FROM jsonb_each(document) AS e WHERE e.value <> 'null'
$$;
COMMENT ON FUNCTION mill.without_nulls IS
    'Returns the object without the keys whose value is null. Unlike jsonb_strip_nulls, leaves nested values as they '
    'are';
GRANT EXECUTE ON FUNCTION mill.without_nulls TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.job_definition(job text) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.without_nulls(jsonb_build_object('name', j.name, 'description', j.description,
        'category', j.category, 'frequency', j.frequency, 'priority', j.priority, 'enabled', j.disabled_at IS NULL,
        'tags', j.tags, 'metadata', j.metadata, 'expected_duration', j.expected_duration, 'deadline', j.deadline,
        'run_timeout', j.run_timeout,
        'tasks', (SELECT coalesce(jsonb_agg(mill.without_nulls(
                coalesce(to_jsonb(t.options), '{}')
                || to_jsonb(t) - ARRAY['job', 'disabled_at', 'group_name', 'join_mode', 'options', 'explain']
                || jsonb_build_object(
                    'group', t.group_name, 'join', t.join_mode, 'run_as', nullif(t.run_as, ''),
                    'after', (SELECT jsonb_agg(jsonb_build_object('task', e.parent, 'expected', e.expected)
                            ORDER BY e.parent)
                        FROM mill.job_edges e
                        WHERE e.job = j.name AND e.child = t.name AND e.disabled_at IS NULL)))
                ORDER BY t.name), '[]')
            FROM mill.visible_job_tasks t WHERE t.job = j.name AND t.disabled_at IS NULL)))
    FROM mill.jobs j WHERE lower(j.name) = lower(job_definition.job)
$$;
COMMENT ON FUNCTION mill.job_definition IS
    'Returns the job as arguments of mill.set_job (tags and metadata belong into its argument options); null: it does '
    'not exist';
GRANT EXECUTE ON FUNCTION mill.job_definition TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.check_job_params(params jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    param jsonb;
BEGIN
    IF jsonb_typeof(params) <> 'array' THEN
        RAISE EXCEPTION 'params is a JSON %, not an array', jsonb_typeof(params) USING ERRCODE = '22023';
    END IF;
    FOR param IN SELECT p.value FROM jsonb_array_elements(params) AS p
        WHERE jsonb_typeof(p.value) = 'object' AND p.value ?| ARRAY['$param', '$result']
    LOOP
        IF jsonb_typeof(coalesce(param->'$param', param->'$result')) <> 'string'
            OR param ? '$param' AND param - '$param' <> '{}'
            OR param ? '$result' AND (param - '$result' - 'column' <> '{}'
                OR jsonb_typeof(param->'column') IS DISTINCT FROM 'string')
        THEN
            RAISE EXCEPTION 'invalid parameter reference %', param USING ERRCODE = '22023',
                HINT = 'Write {"$param": "name"} for a parameter of the run, {"$result": "task", "column": "name"} '
                    'for a value that a parent returned.';
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.check_job_params IS
    'Raises an error if params of a job''s task are not an array or contain an invalid reference';

CREATE OR REPLACE FUNCTION mill.with_max_attempts(document jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given text[] := ARRAY(SELECT k FROM unnest('{max_attempts,attempts,max_retries}'::text[]) AS k WHERE document ? k);
BEGIN
    IF cardinality(given) > 1 THEN
        RAISE EXCEPTION '"%" and "%" are the same setting: give one of them', given[1], given[2]
            USING ERRCODE = '22023';
    ELSIF given[1] = 'attempts' THEN
        RETURN document - 'attempts' || jsonb_build_object('max_attempts', document->'attempts');
    ELSIF given[1] = 'max_retries' THEN
        RETURN document - 'max_retries'
            || jsonb_build_object('max_attempts', (document->>'max_retries')::integer + 1);
    END IF;
    RETURN document;
END
$$;
COMMENT ON FUNCTION mill.with_max_attempts IS
    'Returns the document with the key max_attempts in place of its aliases: attempts (the same number) or '
    'max_retries (one less)';

CREATE OR REPLACE FUNCTION mill.set_job_task(job text, task jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    unknown text;
    parent jsonb;
    put mill.job_tasks := jsonb_populate_record(NULL::mill.job_tasks, '{"queue": "default", "ignore_failure": false,
        "join_mode": "all", "run_as": "", "approval": false}' || jsonb_build_object('job', job));
BEGIN
    task := mill.with_max_attempts(task);
    put.enabled := coalesce((SELECT t.enabled FROM mill.job_tasks t
        WHERE t.job = set_job_task.job AND t.name = task->>'name'), true);
    -- The key of every other setting is the name of its column.
    SELECT k INTO unknown FROM jsonb_object_keys(task) AS k WHERE k NOT IN ('group', 'join', 'after')
        -- The tasks of a run have the traceparent of the run, and no plan.
        AND (k <> ALL (mill.task_option_names()) OR k IN ('explain', 'traceparent'))
        AND (k IN ('job', 'disabled_at', 'group_name', 'join_mode', 'options') OR NOT EXISTS (SELECT FROM pg_attribute a
            WHERE a.attrelid = 'mill.job_tasks'::regclass AND a.attname = k AND a.attnum > 0 AND NOT a.attisdropped));
    IF FOUND THEN
        RAISE EXCEPTION 'unknown key "%"', unknown USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_durations(task - 'deadline');
    task := task || jsonb_build_object('statement', mill.check_statement(task->>'statement', NULL));
    PERFORM mill.check_job_params(task->'params'), mill.check_size('params are', task->'params') WHERE task ? 'params';
    PERFORM mill.lock_group(task->>'group') WHERE task ? 'group';
    PERFORM mill.check_profile(task->>'run_as'), mill.check_routine(task->>'run_as', task->>'statement')
        WHERE task ? 'run_as';
    put := jsonb_populate_record(put, mill.without_nulls(task - ARRAY['group', 'join', 'after']
        || jsonb_build_object('group_name', task->'group', 'join_mode', task->'join')));
    put.options := mill.read_options(task);
    IF put.approval_note IS NOT NULL AND NOT put.approval THEN
        RAISE EXCEPTION 'approval_note requires approval' USING ERRCODE = '22023';
    END IF;
    DELETE FROM mill.job_tasks t WHERE t.job = set_job_task.job AND t.name = put.name;
    INSERT INTO mill.job_tasks SELECT put.*;
    FOR parent IN SELECT p.value FROM jsonb_array_elements(coalesce(task->'after', '[]')) AS p LOOP
        IF jsonb_typeof(parent) = 'string' THEN
            parent := jsonb_build_object('task', parent);
        END IF;
        INSERT INTO mill.job_edges (job, child, parent, expected)
            VALUES (set_job_task.job, task->>'name', parent->>'task',
                coalesce((parent->>'expected')::mill.expected, 'succeeded'))
            ON CONFLICT (job, child, parent) DO UPDATE SET expected = excluded.expected, disabled_at = NULL;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.set_job_task IS 'Creates or replaces one task of a job with its edges, for mill.set_job';

CREATE OR REPLACE FUNCTION mill.find_cycle(names text[], parents integer[], children integer[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    nodes integer := coalesce(cardinality(names), 0);
    edges integer := coalesce(cardinality(parents), 0);
    waits integer[] := array_fill(0, ARRAY[greatest(nodes, 1)]);
    first_edge integer[] := array_fill(0, ARRAY[greatest(nodes, 1)]);
    next_edge integer[] := array_fill(0, ARRAY[greatest(edges, 1)]);
    ready integer[] := array_fill(0, ARRAY[greatest(nodes, 1)]);
    known integer := 0;
    taken integer := 0;
    edge integer;
    node integer;
    seen integer[] := '{}';
BEGIN
    FOR e IN 1..edges LOOP
        waits[children[e]] := waits[children[e]] + 1;
        next_edge[e] := first_edge[parents[e]];
        first_edge[parents[e]] := e;
    END LOOP;
    FOR i IN 1..nodes LOOP
        IF waits[i] = 0 THEN
            known := known + 1;
            ready[known] := i;
        END IF;
    END LOOP;
    WHILE taken < known LOOP
        taken := taken + 1;
        edge := first_edge[ready[taken]];
        WHILE edge > 0 LOOP
            node := children[edge];
            waits[node] := waits[node] - 1;
            IF waits[node] = 0 THEN
                known := known + 1;
                ready[known] := node;
            END IF;
            edge := next_edge[edge];
        END LOOP;
    END LOOP;
    IF taken = nodes THEN
        RETURN NULL;
    END IF;
    -- Every remaining node has a remaining parent, so following the parents leads into a cycle.
    FOR i IN 1..nodes LOOP
        node := i;
        EXIT WHEN waits[i] > 0;
    END LOOP;
    WHILE node <> ALL (seen) LOOP
        seen := seen || node;
        FOR e IN 1..edges LOOP
            CONTINUE WHEN children[e] <> node OR waits[parents[e]] = 0;
            node := parents[e];
            EXIT;
        END LOOP;
    END LOOP;
    RETURN (SELECT string_agg(names[s.i], ' > ' ORDER BY s.place DESC)
        FROM unnest(seen[array_position(seen, node):] || node) WITH ORDINALITY AS s(i, place));
END
$$;
COMMENT ON FUNCTION mill.find_cycle IS
    'Returns a cycle as a > b > a; null: there is none. The edge number i leads from names[parents[i]] to '
    'names[children[i]] (Kahn, Topological sorting of large networks, 1962)';

CREATE OR REPLACE FUNCTION mill.results_of_disabled_tasks(job text) RETURNS TABLE (child text, parent text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.name, p.name FROM mill.job_tasks c CROSS JOIN LATERAL jsonb_array_elements(c.params) AS param
        JOIN mill.job_tasks p ON p.job = c.job AND p.name = param.value->>'$result'
    WHERE c.job = results_of_disabled_tasks.job AND c.disabled_at IS NULL AND c.enabled
        AND p.disabled_at IS NULL AND NOT p.enabled
$$;
COMMENT ON FUNCTION mill.results_of_disabled_tasks IS
    'Returns the enabled tasks of a job that use a result of a disabled task, with that task';

CREATE OR REPLACE FUNCTION mill.check_job(job text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
DECLARE
    wrong record;
    names text[];
    round_trip text;
BEGIN
    SELECT e.child, e.parent INTO wrong FROM mill.job_edges e WHERE e.job = check_job.job
        AND e.disabled_at IS NULL AND NOT EXISTS (SELECT FROM mill.job_tasks t
            WHERE t.job = e.job AND t.name = e.parent AND t.disabled_at IS NULL) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" of job "%" waits for "%", which is not a task of this job', wrong.child, job,
            wrong.parent USING ERRCODE = '22023', TABLE = job, COLUMN = wrong.child,
            HINT = 'To make a task wait for a task of another job, use pgmill dependency add.';
    END IF;
    SELECT t.name, p.value->>'$result' AS parent INTO wrong
        FROM mill.job_tasks t CROSS JOIN LATERAL jsonb_array_elements(t.params) AS p
        WHERE t.job = check_job.job AND t.disabled_at IS NULL AND jsonb_typeof(p.value) = 'object'
            AND p.value ? '$result'
            AND NOT EXISTS (SELECT FROM mill.job_edges e WHERE e.job = t.job AND e.child = t.name
                AND e.parent = p.value->>'$result' AND e.disabled_at IS NULL)
            AND NOT EXISTS (SELECT FROM mill.dependencies d WHERE d.child = t.name
                AND d.parent = p.value->>'$result' AND d.disabled_at IS NULL) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" of job "%" uses a result of "%" but does not wait for it', wrong.name, job,
            wrong.parent USING ERRCODE = '22023', TABLE = job, COLUMN = wrong.name;
    END IF;
    SELECT m.child AS name, m.parent INTO wrong FROM mill.results_of_disabled_tasks(job) AS m LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" of job "%" uses a result of "%", which is disabled', wrong.name, job, wrong.parent
            USING ERRCODE = '22023', TABLE = job, COLUMN = wrong.name,
                HINT = 'Disable both tasks, or neither.';
    END IF;
    SELECT array_agg(t.name::text ORDER BY t.name) INTO names FROM mill.job_tasks t
        WHERE t.job = check_job.job AND t.disabled_at IS NULL;
    WITH place AS (SELECT n.name, n.i::integer FROM unnest(names) WITH ORDINALITY AS n(name, i)),
    edge AS (
        SELECT e.parent::text, e.child::text FROM mill.job_edges e
            WHERE e.job = check_job.job AND e.disabled_at IS NULL
        UNION SELECT d.parent, d.child FROM mill.dependencies d WHERE d.disabled_at IS NULL
    )
    SELECT mill.find_cycle(names, array_agg(p.i), array_agg(c.i)) INTO round_trip
        FROM edge e JOIN place p ON p.name = e.parent JOIN place c ON c.name = e.child;
    IF round_trip IS NOT NULL THEN
        RAISE EXCEPTION 'dependency cycle in job "%": %', job, round_trip
            USING ERRCODE = '22023', TABLE = job, COLUMN = split_part(round_trip, ' > ', 1);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_job IS
    'Raises an error if a job cannot run: unknown parents, results of tasks that it does not wait for, or a cycle';

CREATE OR REPLACE FUNCTION mill.set_job_tasks(job text, tasks jsonb, defaults jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names text[];
    task jsonb;
    problem text;
    hint text;
BEGIN
    SELECT array_agg(t.value->>'name') INTO names FROM jsonb_array_elements(tasks) AS t;
    UPDATE mill.job_tasks t SET disabled_at = now()
        WHERE t.job = set_job_tasks.job AND t.disabled_at IS NULL AND t.name <> ALL (coalesce(names, '{}'));
    UPDATE mill.job_edges e SET disabled_at = now() WHERE e.job = set_job_tasks.job AND e.disabled_at IS NULL;
    SELECT n INTO problem FROM unnest(names) AS n GROUP BY n HAVING count(*) > 1 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job "%" has two tasks named "%"', job, problem
            USING ERRCODE = '22023', TABLE = job, COLUMN = coalesce(problem, '');
    END IF;
    FOR task IN SELECT t.value FROM jsonb_array_elements(tasks) AS t LOOP
        BEGIN
            PERFORM mill.set_job_task(job, CASE WHEN task->'at_most_once' = 'true' THEN defaults - 'max_attempts'
                ELSE defaults END || mill.with_max_attempts(task));
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
            GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
            RAISE EXCEPTION 'task "%" of job "%": %', task->>'name', job, problem
                USING ERRCODE = '22023', TABLE = job, COLUMN = coalesce(task->>'name', ''),
                    HINT = coalesce(nullif(hint, ''), 'See docs/runs.md for the settings of a task of a job.');
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.set_job_tasks IS
    'Replaces the tasks and edges of a job, for mill.put_job. defaults: settings of tasks that do not set them';

CREATE OR REPLACE FUNCTION mill.put_job(name text, tasks jsonb, description text, category text, frequency text,
    priority mill.priority, enabled boolean, options jsonb) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    before jsonb;
    kept text;
    labels record;
    defaults jsonb := mill.with_max_attempts(coalesce(options->'task_defaults', '{}'));
BEGIN
    IF jsonb_typeof(tasks) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'tasks must be a JSON array' USING ERRCODE = '22023';
    ELSIF jsonb_typeof(defaults) <> 'object' THEN
        RAISE EXCEPTION 'task_defaults must be a JSON object' USING ERRCODE = '22023';
    ELSIF defaults ?| '{name,description,statement,params,after,at_most_once}' THEN
        RAISE EXCEPTION 'name, description, statement, params, after and at_most_once have no default'
            USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_labels(options - '{task_defaults,expected_duration,deadline,run_timeout}'::text[]);
    PERFORM mill.check_durations(options);
    SELECT l.tags, l.metadata INTO labels FROM mill.read_labels(options) AS l;
    -- A concurrent mill.set_dependency could form a cycle with the edges of this job.
    IF jsonb_array_length(tasks) > 1 THEN
        LOCK TABLE mill.dependencies IN SHARE MODE;
    END IF;
    SELECT j.name INTO kept FROM mill.jobs j WHERE lower(j.name) = lower(put_job.name) FOR UPDATE;
    IF FOUND THEN
        before := mill.job_definition(kept);
        PERFORM mill.record_job_version(kept);
        UPDATE mill.jobs j SET description = put_job.description, frequency = put_job.frequency,
                category = put_job.category, priority = put_job.priority,
                tags = labels.tags, metadata = labels.metadata,
                expected_duration = (options->>'expected_duration')::interval,
                deadline = (options->>'deadline')::interval, run_timeout = (options->>'run_timeout')::interval,
                disabled_at = CASE enabled WHEN true THEN NULL WHEN false THEN coalesce(j.disabled_at, now())
                    ELSE j.disabled_at END
            WHERE j.name = kept;
    ELSE
        INSERT INTO mill.jobs (name, description, category, frequency, priority, disabled_at, tags, metadata,
                expected_duration, deadline, run_timeout)
            VALUES (name, description, category, frequency, priority, CASE WHEN NOT enabled THEN now() END,
                labels.tags, labels.metadata, (options->>'expected_duration')::interval,
                (options->>'deadline')::interval, (options->>'run_timeout')::interval);
        kept := name;
    END IF;
    PERFORM mill.set_job_tasks(kept, tasks, defaults);
    PERFORM mill.check_job(kept);
    IF mill.job_definition(kept) IS NOT DISTINCT FROM before THEN
        RETURN false;
    END IF;
    UPDATE mill.jobs j SET changed_at = now(), changed_by = session_user,
        version = j.version + (before IS NOT NULL)::integer WHERE j.name = kept;
    PERFORM mill.record_job_version(kept);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.put_job IS
    'Creates or replaces a job, for mill.set_job and mill.put_schedule_job. Returns whether anything changed';

CREATE OR REPLACE FUNCTION mill.set_job(name text, tasks jsonb, description text DEFAULT NULL,
    frequency text DEFAULT NULL, priority mill.priority DEFAULT NULL, enabled boolean DEFAULT NULL,
    category text DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner text;
    retired boolean;
    changed boolean;
BEGIN
    SELECT s.name INTO owner FROM mill.schedules s
        WHERE s.own_job AND s.removed_at IS NULL AND lower(s.jobs[1]) = lower(set_job.name) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job "%" belongs to schedule "%"', name, owner USING ERRCODE = '55000',
            HINT = 'Change it where the schedule is declared, or use another name.';
    END IF;
    UPDATE mill.jobs j SET of_schedule = false WHERE lower(j.name) = lower(set_job.name) AND j.of_schedule;
    retired := FOUND;
    -- mill.retire_schedule_job has disabled a job that is left from a schedule.
    changed := mill.put_job(name, tasks, description, category, frequency, priority,
        CASE WHEN retired THEN coalesce(enabled, true) ELSE enabled END, options);
    IF changed THEN
        PERFORM mill.record_audit('set_job', 'job ' || j.name, jsonb_build_object('version', j.version))
            FROM mill.jobs j WHERE lower(j.name) = lower(set_job.name);
    END IF;
    RETURN changed;
END
$$;
COMMENT ON FUNCTION mill.set_job IS
    'Creates or replaces a job. Tasks that are no longer listed are disabled, not deleted. enabled null: the job '
    'stays enabled or disabled as it is. Returns whether anything changed. tasks: [{"name", "statement", "params", '
    '"queue", "priority", "group", "concurrency_key", "max_attempts", "retry_interval", "backoff", "jitter", '
    '"timeout", "mode", "at_most_once", "external", "ignore_failure", "join", "run_as", "tags", "metadata", '
    '"description", "enabled", "expected_duration", "approval", "approval_note", '
    '"after": ["parent", {"task": "parent", "expected": "failed"}]}]. '
    'options, for the runs of the job: {"tags": ["etl"], "metadata": {"owner": "bi"}, "expected_duration": "20 min", '
    '"deadline": "2 h", "run_timeout": "3 h"}, and defaults for its tasks: {"task_defaults": '
    '{"queue": "etl", "group": "loads"}}';
GRANT EXECUTE ON FUNCTION mill.set_job TO mill_operator;

CREATE OR REPLACE FUNCTION mill.enable_job(job text, enabled boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.record_job_version(job);
    UPDATE mill.jobs j SET disabled_at = CASE WHEN enabled THEN NULL ELSE coalesce(j.disabled_at, now()) END,
            version = j.version + (enabled <> (j.disabled_at IS NULL))::integer,
            changed_at = now(), changed_by = session_user
        WHERE lower(j.name) = lower(enable_job.job);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_job_version(job);
    -- The schedule that owns a job enables and disables it; only the change of the schedule is audited.
    PERFORM mill.record_audit('enable_job', 'job ' || j.name, jsonb_build_object('enabled', enabled))
        FROM mill.jobs j WHERE lower(j.name) = lower(enable_job.job) AND NOT j.of_schedule;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.enable_job IS 'Enables or disables a job. Returns false if it does not exist';
GRANT EXECUTE ON FUNCTION mill.enable_job TO mill_operator;

CREATE OR REPLACE FUNCTION mill.enable_job_task(job text, task text, enabled boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    kept text;
    changed boolean;
    wrong record;
BEGIN
    SELECT j.name INTO kept FROM mill.jobs j WHERE lower(j.name) = lower(enable_job_task.job) FOR UPDATE;
    SELECT t.enabled <> enable_job_task.enabled INTO changed FROM mill.job_tasks t
        WHERE t.job = kept AND t.name = task AND t.disabled_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_job_version(kept);
    UPDATE mill.job_tasks t SET enabled = enable_job_task.enabled WHERE t.job = kept AND t.name = task;
    SELECT m.child, m.parent INTO wrong FROM mill.results_of_disabled_tasks(kept) AS m
        WHERE task IN (m.child, m.parent) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" uses a result of "%", which would be disabled', wrong.child, wrong.parent
            USING ERRCODE = '55000', HINT = 'Disable the task that uses the result first, and enable it last.';
    END IF;
    UPDATE mill.jobs j SET version = j.version + changed::integer, changed_at = now(), changed_by = session_user
        WHERE j.name = kept;
    PERFORM mill.record_job_version(kept);
    PERFORM mill.record_audit('enable_job_task', 'job ' || kept,
        jsonb_build_object('task', task, 'enabled', enable_job_task.enabled));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.enable_job_task IS
    'Enables or disables one task of a job. New runs of the job omit a disabled task and its edges. Returns false if '
    'the job or the task does not exist';
GRANT EXECUTE ON FUNCTION mill.enable_job_task TO mill_operator;

-- schema/26_dependencies.sql ----------------------------------------------------------------------

-- Dependencies: edges that hold in every run that contains both tasks.
--
-- They hold regardless of jobs. Dependencies and the edges of jobs together form the lineage of the
-- data that the tasks load.
--
-- The lineage may contain a cycle between jobs that never run together. A run that contains a cycle does
-- not start.

CREATE TABLE IF NOT EXISTS mill.dependencies (
    child mill.label NOT NULL,
    parent mill.label NOT NULL,
    expected mill.expected NOT NULL DEFAULT 'succeeded',
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT session_user,
    disabled_at timestamptz,
    PRIMARY KEY (child, parent)
);
COMMENT ON TABLE mill.dependencies IS
    'Dependencies between tasks in every run that contains both. They also form the lineage of the data that the '
    'tasks load';
COMMENT ON COLUMN mill.dependencies.disabled_at IS 'Time since which new runs ignore the dependency; null: enabled';
CREATE INDEX IF NOT EXISTS dependencies_parent ON mill.dependencies (parent);

CREATE OR REPLACE FUNCTION mill.check_jobs_with(child text, parent text) RETURNS void
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.check_job(j.name) FROM mill.jobs j WHERE j.disabled_at IS NULL AND 2 = (
        SELECT count(*) FROM mill.job_tasks t WHERE t.job = j.name AND t.disabled_at IS NULL
            AND t.name IN (check_jobs_with.child, check_jobs_with.parent))
$$;
COMMENT ON FUNCTION mill.check_jobs_with IS
    'Raises an error if an enabled job that contains both tasks cannot run, for changes of their dependency';

CREATE OR REPLACE FUNCTION mill.set_dependency(child text, parent text,
    expected mill.expected DEFAULT 'succeeded') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names text[];
    round_trip text;
BEGIN
    -- Serializes changes: two concurrent changes could form a cycle that neither change forms alone.
    LOCK TABLE mill.dependencies IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO mill.dependencies AS d (child, parent, expected)
        VALUES (set_dependency.child, set_dependency.parent, set_dependency.expected)
        ON CONFLICT ON CONSTRAINT dependencies_pkey DO UPDATE SET expected = excluded.expected,
            disabled_at = NULL, changed_at = now(), changed_by = session_user
            WHERE d.disabled_at IS NOT NULL OR d.expected <> excluded.expected;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT array_agg(DISTINCT n.name) INTO names FROM mill.dependencies d
        CROSS JOIN LATERAL (VALUES (d.child::text), (d.parent)) AS n (name) WHERE d.disabled_at IS NULL;
    WITH place AS (SELECT n.name, n.i::integer FROM unnest(names) WITH ORDINALITY AS n(name, i))
    SELECT mill.find_cycle(names, array_agg(p.i), array_agg(c.i)) INTO round_trip
        FROM mill.dependencies d JOIN place p ON p.name = d.parent JOIN place c ON c.name = d.child
        WHERE d.disabled_at IS NULL;
    IF round_trip IS NOT NULL THEN
        RAISE EXCEPTION 'dependency cycle: %', round_trip USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_jobs_with(child, parent);
    PERFORM mill.record_audit('set_dependency', format('dependency %s > %s', parent, child),
        jsonb_build_object('expected', expected));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.set_dependency IS
    'Makes the child wait for the parent in every run that contains both. Raises an error if a job that contains both '
    'could then not run. Returns whether anything changed';
GRANT EXECUTE ON FUNCTION mill.set_dependency TO mill_operator;

CREATE OR REPLACE FUNCTION mill.drop_dependency(child text, parent text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.dependencies d SET disabled_at = now(), changed_at = now(), changed_by = session_user
        WHERE d.child = drop_dependency.child AND d.parent = drop_dependency.parent AND d.disabled_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A job may use a result of the parent in the child.
    PERFORM mill.check_jobs_with(child, parent);
    PERFORM mill.record_audit('drop_dependency', format('dependency %s > %s', parent, child));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.drop_dependency IS
    'Disables a dependency. Raises an error if a job could then not run, because the child uses a result of the '
    'parent. Returns false if the dependency does not exist';
GRANT EXECUTE ON FUNCTION mill.drop_dependency TO mill_operator;

CREATE OR REPLACE VIEW mill.lineage AS
    SELECT d.child, d.parent, d.expected, NULL::text AS job FROM mill.dependencies d WHERE d.disabled_at IS NULL
    UNION ALL
    SELECT e.child, e.parent, e.expected, e.job FROM mill.job_edges e JOIN mill.jobs j ON j.name = e.job
    WHERE e.disabled_at IS NULL AND j.disabled_at IS NULL;
COMMENT ON VIEW mill.lineage IS
    'Dependencies between tasks: those that hold in every run (job null), and the edges of each job';

CREATE OR REPLACE FUNCTION mill.reachable_tasks(origin text, upwards boolean)
RETURNS TABLE (task text, distance integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
DECLARE
    names text[];
    froms integer[];
    tos integer[];
    first_edge integer[];
    next_edge integer[];
    distances integer[];
    found integer[];
    known integer := 0;
    taken integer := 0;
    edge integer;
BEGIN
    SELECT array_agg(DISTINCT n.name) INTO names
        FROM mill.lineage l CROSS JOIN LATERAL (VALUES (l.child::text), (l.parent)) AS n (name);
    IF names IS NULL OR origin <> ALL (names) THEN
        RETURN;
    END IF;
    WITH place AS (SELECT n.name, n.i::integer FROM unnest(names) WITH ORDINALITY AS n(name, i)),
    edges AS (SELECT DISTINCT l.child::text, l.parent::text FROM mill.lineage l)
    SELECT array_agg(CASE WHEN upwards THEN c.i ELSE p.i END), array_agg(CASE WHEN upwards THEN p.i ELSE c.i END)
        INTO froms, tos
        FROM edges e JOIN place c ON c.name = e.child JOIN place p ON p.name = e.parent;
    first_edge := array_fill(0, ARRAY[cardinality(names)]);
    next_edge := array_fill(0, ARRAY[cardinality(froms)]);
    distances := array_fill(-1, ARRAY[cardinality(names)]);
    found := array_fill(0, ARRAY[cardinality(names)]);
    FOR e IN 1..cardinality(froms) LOOP
        next_edge[e] := first_edge[froms[e]];
        first_edge[froms[e]] := e;
    END LOOP;
    -- Breadth-first search. The lineage may contain cycles between jobs that never run together.
    known := 1;
    found[1] := array_position(names, origin);
    distances[found[1]] := 0;
    WHILE taken < known LOOP
        taken := taken + 1;
        edge := first_edge[found[taken]];
        WHILE edge > 0 LOOP
            IF distances[tos[edge]] < 0 THEN
                distances[tos[edge]] := distances[found[taken]] + 1;
                known := known + 1;
                found[known] := tos[edge];
            END IF;
            edge := next_edge[edge];
        END LOOP;
    END LOOP;
    RETURN QUERY SELECT names[f.i], distances[f.i] FROM unnest(found[2:known]) AS f(i) ORDER BY 2, 1;
END
$$;
COMMENT ON FUNCTION mill.reachable_tasks IS
    'Returns all direct and indirect parents of a task, or all children, with their distance (1: direct)';

CREATE OR REPLACE FUNCTION mill.upstream(name text) RETURNS TABLE (task text, distance integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.task, r.distance FROM mill.reachable_tasks(name, true) AS r
$$;
COMMENT ON FUNCTION mill.upstream IS
    'Returns the tasks that this task waits for, directly or indirectly, with their distance (1: direct)';
GRANT EXECUTE ON FUNCTION mill.upstream TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.downstream(name text) RETURNS TABLE (task text, distance integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.task, r.distance FROM mill.reachable_tasks(name, false) AS r
$$;
COMMENT ON FUNCTION mill.downstream IS
    'Returns the tasks that wait for this task, directly or indirectly, with their distance (1: direct)';
GRANT EXECUTE ON FUNCTION mill.downstream TO mill_viewer;

-- schema/27_job_versions.sql ----------------------------------------------------------------------

-- Versions of jobs: what each change of a definition changed.
--
-- A version also says back to which version it can be compared.

CREATE TABLE IF NOT EXISTS mill.job_versions (
    job mill.label NOT NULL REFERENCES mill.jobs ON DELETE CASCADE,
    version integer NOT NULL,
    definition jsonb NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by text NOT NULL,
    PRIMARY KEY (job, version)
);
COMMENT ON TABLE mill.job_versions IS
    'Definitions of jobs: up to 50 versions of each job, the current version included';
COMMENT ON COLUMN mill.job_versions.definition IS 'Result of mill.job_definition';

CREATE OR REPLACE VIEW mill.visible_job_versions AS
    SELECT v.job, v.version, v.changed_at, v.changed_by,
        CASE WHEN (SELECT mill.sees_statements()) THEN v.definition
            ELSE jsonb_set(v.definition, '{tasks}', (SELECT coalesce(jsonb_agg(t.value - '{statement,params}'::text[]
                    ORDER BY t.ordinality), '[]')
                FROM jsonb_array_elements(v.definition->'tasks') WITH ORDINALITY AS t)) END AS definition
    FROM mill.job_versions v;
COMMENT ON VIEW mill.visible_job_versions IS
    'mill.job_versions for mill_viewer. Hides statements and params of tasks if settings.hide_statements is set';

CREATE OR REPLACE FUNCTION mill.record_job_version(job text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO mill.job_versions (job, version, definition, changed_at, changed_by)
        SELECT j.name, j.version, mill.job_definition(j.name), j.changed_at, j.changed_by FROM mill.jobs j
        WHERE lower(j.name) = lower(record_job_version.job) AND NOT EXISTS (SELECT FROM mill.job_versions v
            WHERE v.job = j.name AND v.version = j.version)
        ON CONFLICT (job, version) DO NOTHING;
    DELETE FROM mill.job_versions v USING mill.jobs j
        WHERE lower(j.name) = lower(record_job_version.job) AND v.job = j.name AND v.version <= j.version - 50;
END
$$;
COMMENT ON FUNCTION mill.record_job_version IS
    'Stores the current version of a job in mill.job_versions unless it is there, and deletes versions that are too '
    'old. A function that changes a job calls it before the change, because a job may be older than the table, and '
    'after it';

-- schema/28_schedules.sql -------------------------------------------------------------------------

-- Schedules: when jobs run automatically.
--
-- Tables, declaration and settings; 39_schedule_ticks.sql fires them. This file precedes 29_runs.sql,
-- because mill.create_run takes a row of mill.schedules.
--
-- The timing of a schedule is a text that only the programs parse (crate schedule), so that fire times
-- are computed in one place and stored. next_tick_at is the time at which a tick must process the
-- schedule. A tick locks due rows, and its decisions commit together with the runs that it starts. A
-- fire is a run with a schedule and a fire time.

-- Tables ------------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.schedules (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name mill.label NOT NULL UNIQUE
        CONSTRAINT schedule_name_plain CHECK (name !~ '[[:cntrl:]]' AND btrim(name) = name),
    declared_in mill.declared_in NOT NULL,
    declared_as text,
    definition jsonb NOT NULL,
    jobs text[] NOT NULL CONSTRAINT has_jobs CHECK (cardinality(jobs) > 0),
    own_job boolean NOT NULL DEFAULT false,
    params jsonb NOT NULL DEFAULT '{}' CONSTRAINT params_by_name CHECK (jsonb_typeof(params) = 'object'),
    tags text[],
    metadata jsonb CONSTRAINT metadata_is_object CHECK (jsonb_typeof(metadata) = 'object'),
    timing text NOT NULL CONSTRAINT timing_length CHECK (octet_length(timing) BETWEEN 1 AND 4000),
    mode mill.fire_mode NOT NULL GENERATED ALWAYS AS (CASE lower(btrim(split_part(timing, '(', 1)))
        WHEN 'manual' THEN 'manual'::mill.fire_mode WHEN 'trigger' THEN 'triggered'::mill.fire_mode
        ELSE 'scheduled'::mill.fire_mode END) STORED,
    trigger jsonb,
    overlap mill.overlap NOT NULL DEFAULT 'skip',
    catch_up integer NOT NULL DEFAULT 1 CONSTRAINT catch_up_range CHECK (catch_up BETWEEN 0 AND 1000),
    max_lateness interval CONSTRAINT max_lateness_range CHECK (max_lateness BETWEEN '0' AND '365 days'),
    declared_jitter interval NOT NULL DEFAULT '0'
        CONSTRAINT declared_jitter_range CHECK (declared_jitter BETWEEN '0' AND '1 day'),
    expected_duration interval CONSTRAINT expected_duration_range
        CHECK (expected_duration BETWEEN '1 millisecond' AND '365 days'),
    deadline interval CONSTRAINT deadline_range
        CHECK (deadline BETWEEN '1 millisecond' AND '365 days'),
    run_timeout interval CONSTRAINT run_timeout_range
        CHECK (run_timeout BETWEEN '1 millisecond' AND '365 days'),
    enabled boolean NOT NULL DEFAULT true,
    max_attempts mill.attempt_limit,
    retry_interval mill.retry_interval,
    jitter interval CONSTRAINT jitter_range CHECK (jitter BETWEEN '0' AND '1 day'),
    removed_at timestamptz,
    version integer NOT NULL DEFAULT 1,
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT session_user,
    new_timing text,
    new_timing_at timestamptz,
    new_timing_error text,
    timing_finished_at timestamptz,
    planned_from timestamptz NOT NULL DEFAULT now(),
    next_tick_at timestamptz,
    next_fire_at timestamptz,
    queued_fire_at timestamptz,
    queued_later timestamptz[],
    trigger_checked_at timestamptz,
    trigger_result text,
    error text,
    last_fire_at timestamptz,
    last_finished_at timestamptz,
    last_state mill.run_state,
    last_success_at timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.schedules IS 'Schedules: when to start runs of jobs automatically';
COMMENT ON COLUMN mill.schedules.declared_as IS
    'For a schedule that is declared in a comment: the procedure that has the comment';
COMMENT ON COLUMN mill.schedules.definition IS 'Declaration as passed to mill.put_schedule';
COMMENT ON COLUMN mill.schedules.own_job IS 'Whether the job was created for the schedule from a single statement';
COMMENT ON COLUMN mill.schedules.params IS
    'Parameters of the runs of the schedule. {"$param": …} can also refer to fire_at, schedule and reason';
COMMENT ON COLUMN mill.schedules.tags IS
    'Tags of the runs of the schedule, in addition to those of its jobs; null: none';
COMMENT ON COLUMN mill.schedules.metadata IS
    'Metadata of the runs of the schedule, which takes precedence over that of its jobs; null: none';
COMMENT ON COLUMN mill.schedules.timing IS
    'manual, a timing such as daily(03:15), or trigger(…), see docs/schedules.md';
COMMENT ON COLUMN mill.schedules.new_timing IS
    'Timing that mill.set_schedule has set and that no worker has accepted. Until a worker accepts it, timing stays in '
    'force; null: none';
COMMENT ON COLUMN mill.schedules.new_timing_at IS 'Time from which new_timing applies once a worker has accepted it';
COMMENT ON COLUMN mill.schedules.new_timing_error IS
    'Why a worker has rejected new_timing; null: no worker has checked it, or there is none';
COMMENT ON COLUMN mill.schedules.catch_up IS
    'Number of missed fires that are started late. The newest ones are started; older ones are recorded as missed';
COMMENT ON COLUMN mill.schedules.max_lateness IS
    'Maximum delay of a late start. A missed fire that is older is not started but recorded as missed; null: no limit';
COMMENT ON COLUMN mill.schedules.enabled IS
    'Whether the schedule fires. Operators set enabled, max_attempts, retry_interval and jitter; a declaration does '
    'not change these columns';
COMMENT ON COLUMN mill.schedules.max_attempts IS
    'Overrides max_attempts of the tasks of the schedule; null: as declared';
COMMENT ON COLUMN mill.schedules.retry_interval IS
    'Overrides retry_interval of the tasks of the schedule; null: as declared';
COMMENT ON COLUMN mill.schedules.jitter IS 'Maximum random delay of a fire; null: declared_jitter';
COMMENT ON COLUMN mill.schedules.removed_at IS
    'Time at which the declaration was removed. Since then the schedule does not fire; mill.prune_schedule_log '
    'deletes it later; null: the schedule is declared';
COMMENT ON COLUMN mill.schedules.timing_finished_at IS
    'Time at which a tick disabled the schedule, because its timing has no further fire. A new timing enables it '
    'again; null: this has not happened, or an operator has enabled or disabled the schedule since';
COMMENT ON COLUMN mill.schedules.planned_from IS 'Time from which the search for the next fire begins';
COMMENT ON COLUMN mill.schedules.next_tick_at IS 'Time at which a tick must process the schedule; null: never';
COMMENT ON COLUMN mill.schedules.next_fire_at IS
    'Next fire according to the timing; null: not computed yet, or there is no further fire';
COMMENT ON COLUMN mill.schedules.queued_fire_at IS
    'Fire that waits for a run of the schedule to finish (overlap queue, or one of several fires caught up)';
COMMENT ON COLUMN mill.schedules.queued_later IS 'Fires that wait behind queued_fire_at, in order; null: none';
COMMENT ON COLUMN mill.schedules.trigger IS 'Trigger part of timing, as parsed by a worker';
COMMENT ON COLUMN mill.schedules.trigger_checked_at IS 'Time of the last evaluation of the trigger';
COMMENT ON COLUMN mill.schedules.trigger_result IS
    'Result of the last evaluation of the trigger, or the error of its probe';
COMMENT ON COLUMN mill.schedules.error IS
    'Error in the timing, error of the last evaluation of the trigger, or why the last fire started no run';
-- Used by mill.lock_due_schedules. The cost of a tick depends on the due schedules, not on all
-- schedules.
CREATE INDEX IF NOT EXISTS schedules_tick ON mill.schedules (next_tick_at) WHERE next_tick_at IS NOT NULL;
GRANT SELECT ON mill.schedules TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.schedule_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id bigint NOT NULL,
    logged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    event mill.schedule_event NOT NULL,
    fire_at timestamptz,
    reason text,
    message text,
    rows bigint,
    count bigint,
    run_id bigint,
    outcome mill.run_state,
    duration interval
);
COMMENT ON TABLE mill.schedule_log IS
    'One row per schedule event (fired, skipped, missed, completed, error, …). Rows are never updated. Workers delete '
    'rows older than settings.schedule_log_retention';
COMMENT ON COLUMN mill.schedule_log.reason IS
    'Reason of the fire: schedule, manual, or the trigger condition that was met';
COMMENT ON COLUMN mill.schedule_log.rows IS 'For a fire of a trigger: number of pending rows';
COMMENT ON COLUMN mill.schedule_log.count IS 'For missed: number of missed fires';
COMMENT ON COLUMN mill.schedule_log.run_id IS
    'Run that was fired or finished; for a skipped fire, the run that was in progress';
COMMENT ON COLUMN mill.schedule_log.duration IS 'For completed: duration of the run';
-- The log of one schedule, with keyset pagination.
CREATE INDEX IF NOT EXISTS schedule_log_schedule ON mill.schedule_log (schedule_id, id);

CREATE OR REPLACE VIEW mill.visible_schedule_log AS
    SELECT x.id, x.schedule_id, x.logged_at, x.event, x.fire_at, x.reason, x.rows, x.count, x.run_id,
        x.outcome, x.duration,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.message END AS message,
        (SELECT s.name FROM mill.schedules s WHERE s.id = x.schedule_id) AS schedule
    FROM mill.schedule_log x;
COMMENT ON VIEW mill.visible_schedule_log IS
    'mill.schedule_log for mill_viewer, with the names of the schedules. Hides messages if settings.hide_statements is '
    'set';

CREATE TABLE IF NOT EXISTS mill.schedule_declaration_errors (
    declared_as text NOT NULL,
    place text NOT NULL,
    message text NOT NULL,
    hint text,
    found_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (declared_as, place, message)
);
COMMENT ON TABLE mill.schedule_declaration_errors IS
    'Errors in the comments of procedures, found by the last schedule sync';
COMMENT ON COLUMN mill.schedule_declaration_errors.place IS 'line:column within the comment';
GRANT SELECT, INSERT, DELETE ON mill.schedule_declaration_errors TO mill_worker, mill_operator;

-- Declaration -------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.timing_without_probe(timing text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN timing ~* '^[^a-z]*trigger[^a-z_]*([(]|$)' THEN 'trigger(…)' ELSE timing END
$$;
COMMENT ON FUNCTION mill.timing_without_probe IS
    'Returns a timing for readers who may not see statements: that of a trigger contains SQL';
GRANT EXECUTE ON FUNCTION mill.timing_without_probe TO mill_viewer, mill_worker;

CREATE OR REPLACE FUNCTION mill.is_active(schedule mill.schedules) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT schedule.enabled AND schedule.removed_at IS NULL
$$;
COMMENT ON FUNCTION mill.is_active IS 'Returns whether the schedule may fire automatically';
GRANT EXECUTE ON FUNCTION mill.is_active TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.put_schedule_job(job text, definition jsonb, enabled boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    other text;
BEGIN
    SELECT j.name INTO other FROM mill.jobs j
        WHERE lower(j.name) = lower(job) AND (j.name <> job OR NOT j.of_schedule);
    IF FOUND THEN
        RAISE EXCEPTION 'job "%" already exists', other USING ERRCODE = '22023',
            HINT = 'Give that job instead of a statement, or give the schedule another name.';
    END IF;
    PERFORM mill.put_job(job, jsonb_build_array(coalesce(definition->'task', '{}')
            || jsonb_build_object('name', job, 'statement', definition->'statement')),
        definition->>'description', definition->>'category', NULL, NULL, enabled, NULL);
    UPDATE mill.jobs j SET of_schedule = true WHERE j.name = job AND NOT j.of_schedule;
END
$$;
COMMENT ON FUNCTION mill.put_schedule_job IS 'Creates or replaces a job with a single statement, for mill.put_schedule';

CREATE OR REPLACE FUNCTION mill.is_job_of_schedule(jobs text[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM mill.schedules s
        WHERE s.own_job AND s.jobs = is_job_of_schedule.jobs AND s.removed_at IS NULL)
$$;
COMMENT ON FUNCTION mill.is_job_of_schedule IS
    'Returns whether this job was created for a schedule that is still declared';

CREATE OR REPLACE FUNCTION mill.retire_schedule_job(jobs text[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.enable_job(retire_schedule_job.jobs[1], false) WHERE NOT mill.is_job_of_schedule(jobs)
$$;
COMMENT ON FUNCTION mill.retire_schedule_job IS
    'Disables a job that was created for schedules if no schedule uses it any more';

CREATE OR REPLACE FUNCTION mill.check_schedule(definition jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unknown text;
    problem text := CASE
        WHEN coalesce(octet_length(definition->>'timing'), 0) NOT BETWEEN 1 AND 4000
            THEN 'timing must have from 1 to 4000 bytes'
        WHEN (definition->>'catch_up')::integer NOT BETWEEN 0 AND 1000 THEN 'catch_up must be from 0 to 1000'
        WHEN (definition->>'max_lateness')::interval NOT BETWEEN '0' AND '365 days'
            THEN 'max_lateness must be from 0 to 365 days'
        WHEN (definition->>'jitter')::interval NOT BETWEEN '0' AND '1 day' THEN 'jitter must be from 0 to 1 day' END;
BEGIN
    SELECT k INTO unknown FROM jsonb_object_keys(definition) AS k WHERE k <> ALL (ARRAY['name', 'timing',
        'statement', 'jobs', 'params', 'task', 'overlap', 'catch_up', 'max_lateness', 'jitter', 'description',
        'category', 'enabled', 'tags', 'metadata', 'expected_duration', 'deadline', 'run_timeout']);
    IF FOUND THEN
        RAISE EXCEPTION 'unknown key "%" in a schedule', unknown USING ERRCODE = '22023';
    ELSIF num_nonnulls(definition->>'statement', definition->'jobs') <> 1 THEN
        RAISE EXCEPTION 'schedule "%" needs either a statement or jobs', definition->>'name' USING ERRCODE = '22023';
    ELSIF definition ? 'jobs' AND definition ?| ARRAY['task', 'description', 'category']
        OR definition ? 'statement' AND definition ? 'params'
    THEN
        RAISE EXCEPTION 'schedule "%" combines settings of a statement and of jobs', definition->>'name'
            USING ERRCODE = '22023',
            HINT = 'task, description and category require a statement, whose params belong in task; '
                'params requires jobs.';
    ELSIF problem IS NOT NULL THEN
        RAISE EXCEPTION 'schedule "%": %', definition->>'name', problem USING ERRCODE = '22023';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_schedule IS
    'Raises an error if a definition has an unknown key, keys that exclude each other, or a value that is out of range';

CREATE OR REPLACE FUNCTION mill.put_jobs_of_schedule(definition jsonb, declared_as text) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted text[];
    unknown text;
BEGIN
    IF definition ? 'statement' THEN
        wanted := ARRAY[coalesce(declared_as, definition->>'name')];
        -- mill.retire_schedule_job has disabled a job that is left from schedules which were removed. A job of another
        -- schedule stays as operators have set it.
        PERFORM mill.put_schedule_job(wanted[1], definition,
            CASE WHEN NOT mill.is_job_of_schedule(wanted) THEN true END);
        RETURN wanted;
    END IF;
    SELECT array_agg(j.value ORDER BY j.place) INTO wanted
        FROM jsonb_array_elements_text(definition->'jobs') WITH ORDINALITY AS j(value, place);
    IF wanted IS NULL THEN
        RAISE EXCEPTION 'schedule "%" has an empty list of jobs', definition->>'name' USING ERRCODE = '22023';
    END IF;
    SELECT w INTO unknown FROM unnest(wanted) AS w WHERE NOT EXISTS (
        SELECT FROM mill.jobs j WHERE lower(j.name) = lower(btrim(w))) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'there is no job "%"', unknown USING ERRCODE = '22023',
            HINT = 'pgmill job list shows all jobs.';
    END IF;
    RETURN wanted;
END
$$;
COMMENT ON FUNCTION mill.put_jobs_of_schedule IS
    'For mill.put_schedule: returns the jobs of a definition. Creates or replaces the job of a single statement. '
    'Raises an error if another job does not exist';

CREATE OR REPLACE FUNCTION mill.read_schedule(definition jsonb) RETURNS mill.schedules
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    declared mill.schedules;
BEGIN
    declared.name := definition->>'name';
    declared.definition := definition - 'enabled';
    declared.own_job := definition ? 'statement';
    declared.params := coalesce(definition->'params', '{}');
    declared.timing := definition->>'timing';
    declared.overlap := coalesce((definition->>'overlap')::mill.overlap, 'skip');
    declared.catch_up := coalesce((definition->>'catch_up')::integer, 1);
    declared.max_lateness := definition->>'max_lateness';
    declared.declared_jitter := coalesce((definition->>'jitter')::interval, '0');
    declared.enabled := definition->>'enabled';
    SELECT l.tags, l.metadata INTO declared.tags, declared.metadata FROM mill.read_labels(definition) AS l;
    declared.expected_duration := definition->>'expected_duration';
    declared.deadline := definition->>'deadline';
    declared.run_timeout := definition->>'run_timeout';
    RETURN declared;
END
$$;
COMMENT ON FUNCTION mill.read_schedule IS
    'Returns the schedule that a definition describes, without its jobs and where it is declared. enabled: null if the '
    'definition does not say it';

CREATE OR REPLACE FUNCTION mill.write_schedule(declared mill.schedules, kept mill.schedules) RETURNS mill.schedules
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept_timing text;
    begins_again boolean;
    put mill.schedules;
BEGIN
    -- The timing of an existing schedule stays in force until a program has parsed the new one. There is
    -- nothing to keep if no worker could use the old one either.
    IF kept.removed_at IS NULL AND kept.timing <> declared.timing
        AND (kept.error IS NULL OR kept.mode = 'manual' OR num_nonnulls(kept.next_fire_at, kept.trigger) > 0)
    THEN
        kept_timing := kept.timing;
    END IF;
    -- The end of its timing has disabled the schedule, not an operator.
    begins_again := declared.enabled IS NULL AND kept.timing_finished_at IS NOT NULL
        AND (kept.removed_at IS NOT NULL OR kept.timing <> declared.timing);
    INSERT INTO mill.schedules AS s (name, declared_in, declared_as, definition, jobs, own_job, params, timing,
        overlap, catch_up, max_lateness, declared_jitter, enabled, next_tick_at, tags, metadata, expected_duration,
        deadline, run_timeout)
    VALUES (declared.name, declared.declared_in, declared.declared_as, declared.definition, declared.jobs,
        declared.own_job, declared.params, declared.timing, declared.overlap, declared.catch_up,
        declared.max_lateness, declared.declared_jitter, coalesce(declared.enabled, true),
        CASE WHEN coalesce(declared.enabled, true) THEN now() END, declared.tags, declared.metadata,
        declared.expected_duration, declared.deadline, declared.run_timeout)
    ON CONFLICT (name) DO UPDATE SET declared_in = excluded.declared_in, declared_as = excluded.declared_as,
        definition = excluded.definition, jobs = excluded.jobs, own_job = excluded.own_job,
        params = excluded.params, timing = coalesce(kept_timing, excluded.timing),
        new_timing = CASE WHEN kept_timing IS NOT NULL THEN excluded.timing END,
        new_timing_at = CASE WHEN kept_timing IS NOT NULL THEN now() END, new_timing_error = NULL,
        next_tick_at = CASE WHEN kept_timing IS NOT NULL AND mill.is_active(s) THEN now() ELSE s.next_tick_at END,
        overlap = excluded.overlap, catch_up = excluded.catch_up, max_lateness = excluded.max_lateness,
        declared_jitter = excluded.declared_jitter, removed_at = NULL,
        tags = excluded.tags, metadata = excluded.metadata,
        expected_duration = excluded.expected_duration, deadline = excluded.deadline,
        run_timeout = excluded.run_timeout,
        enabled = coalesce(declared.enabled, s.enabled OR begins_again),
        timing_finished_at = CASE WHEN declared.enabled IS NULL AND NOT begins_again THEN s.timing_finished_at END
    RETURNING s.* INTO put;
    RETURN put;
END
$$;
COMMENT ON FUNCTION mill.write_schedule IS
    'Creates or replaces a schedule, for mill.put_schedule, and returns it. kept: its locked row so far; null: there '
    'is none. What operators set, and the timing in force, stay';

CREATE OR REPLACE FUNCTION mill.put_schedule(definition jsonb, declared_in mill.declared_in,
    declared_as text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    declared mill.schedules;
    kept mill.schedules;
    put mill.schedules;
BEGIN
    IF definition ? 'task' THEN
        definition := definition || jsonb_build_object('task', mill.with_max_attempts(definition->'task'));
    END IF;
    PERFORM mill.check_size('definition of the schedule is', definition), mill.check_schedule(definition),
        mill.check_durations(definition);
    declared := mill.read_schedule(definition);
    declared.declared_in := declared_in;
    declared.declared_as := declared_as;
    -- A declaration that changes nothing waits for no lock: the sync declares all schedules of comments in one
    -- transaction, and another session may have locked one of them.
    IF EXISTS (SELECT FROM mill.schedules s WHERE s.name = declared.name AND s.removed_at IS NULL
        AND s.declared_in = declared_in AND s.definition = declared.definition
        AND coalesce(declared.enabled, s.enabled) = s.enabled)
    THEN
        RETURN 'unchanged';
    END IF;
    SELECT s.* INTO kept FROM mill.schedules s WHERE s.name = declared.name FOR NO KEY UPDATE;
    IF kept.removed_at IS NULL AND kept.declared_in <> declared_in THEN
        RAISE EXCEPTION 'schedule "%" is declared in %', kept.name, CASE kept.declared_in
                WHEN 'comment' THEN 'the comment of ' || kept.declared_as WHEN 'file' THEN 'a file'
                ELSE 'a call of mill.set_schedule' END
            USING ERRCODE = '55000', HINT = 'Change it there, or remove it there first.';
    END IF;
    IF kept.removed_at IS NULL AND kept.definition = declared.definition
        AND coalesce(declared.enabled, kept.enabled) = kept.enabled
    THEN
        RETURN 'unchanged';
    END IF;
    declared.jobs := mill.put_jobs_of_schedule(definition, declared_as);
    put := mill.write_schedule(declared, kept);
    -- If the timing changed, or the schedule became active or inactive, the next fire is computed from
    -- now.
    IF kept.id IS NOT NULL AND (put.timing <> kept.timing OR mill.is_active(put) <> mill.is_active(kept)) THEN
        PERFORM mill.replan_schedule(put.id);
    END IF;
    -- All viewers read the audit, so it has no statements.
    PERFORM mill.record_change('put_schedule', 'schedule ' || put.name,
        CASE WHEN kept.id IS NOT NULL THEN to_jsonb(kept) || '{"result": "changed"}'
            || jsonb_build_object('timing', mill.timing_without_probe(kept.timing)) END,
        jsonb_build_object('declared_in', declared_in,
            'timing', mill.timing_without_probe(coalesce(put.new_timing, put.timing)),
            'enabled', put.enabled, 'result', CASE WHEN kept.id IS NULL THEN 'new' ELSE 'changed' END));
    IF kept.id IS NULL THEN
        RETURN 'new';
    ELSIF kept.own_job AND kept.jobs <> declared.jobs THEN
        PERFORM mill.retire_schedule_job(kept.jobs);
    END IF;
    UPDATE mill.schedules s SET version = s.version + 1, changed_at = now(), changed_by = session_user
        WHERE s.id = put.id;
    RETURN 'changed';
END
$$;
COMMENT ON FUNCTION mill.put_schedule IS
    'Creates or replaces a schedule. definition: name, timing, statement or jobs, task (settings of the statement, as '
    'in mill.set_job), params, overlap, catch_up, max_lateness, jitter, description, category, enabled, tags, '
    'metadata, expected_duration, deadline, run_timeout. Returns new, changed or unchanged. A new timing of '
    'an existing schedule takes effect when mill.accept_timing is called';
GRANT EXECUTE ON FUNCTION mill.put_schedule TO mill_worker, mill_operator;

CREATE OR REPLACE FUNCTION mill.log_dropped_fires(schedule mill.schedules, until timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one_fire_at timestamptz;
BEGIN
    -- Only workers can compute the instants after the first. A schedule without a next tick was not active.
    IF schedule.next_fire_at <= until AND schedule.next_tick_at IS NOT NULL THEN
        PERFORM mill.log_schedule_event(schedule.id, 'missed', format('every fire from %s to %s, because the schedule '
            'was changed before a worker ticked', schedule.next_fire_at, until), schedule.next_fire_at);
    END IF;
    FOREACH one_fire_at IN ARRAY array_remove(schedule.queued_fire_at || schedule.queued_later, NULL) LOOP
        PERFORM mill.log_schedule_event(schedule.id, 'skipped', 'the schedule was changed while the fire waited',
            one_fire_at);
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.log_dropped_fires IS
    'Logs the fires that a change of a locked schedule drops: the fires up to this time that no tick has processed, '
    'and those that wait for the end of a run';

CREATE OR REPLACE FUNCTION mill.replan_schedule(schedule_id bigint) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.log_dropped_fires(s, now()) FROM mill.schedules s WHERE s.id = replan_schedule.schedule_id;
    UPDATE mill.schedules s SET planned_from = now(), next_fire_at = NULL, queued_fire_at = NULL,
            queued_later = NULL, error = NULL,
            -- The dry run of a disabled schedule evaluates its trigger.
            trigger = CASE WHEN NOT mill.is_active(s) THEN s.trigger END,
            next_tick_at = CASE WHEN mill.is_active(s) THEN now() END,
            new_timing_at = CASE WHEN s.new_timing IS NOT NULL THEN now() END, new_timing_error = NULL
        WHERE s.id = replan_schedule.schedule_id
$$;
COMMENT ON FUNCTION mill.replan_schedule IS
    'Makes the next tick compute the next fire of the schedule, counted from now';

CREATE OR REPLACE FUNCTION mill.accept_timing(name text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.log_dropped_fires(l.schedule, (l.schedule).new_timing_at) FROM (SELECT s AS schedule
        FROM mill.schedules s WHERE s.name = accept_timing.name AND s.new_timing IS NOT NULL FOR NO KEY UPDATE) AS l;
    -- A probe of the old trigger may be in progress. Its result has the old version, so it is ignored.
    UPDATE mill.schedules s SET timing = s.new_timing, new_timing = NULL, new_timing_at = NULL, new_timing_error = NULL,
            planned_from = s.new_timing_at, next_fire_at = NULL, queued_fire_at = NULL, queued_later = NULL,
            trigger = NULL, error = NULL, version = s.version + (s.trigger IS NOT NULL)::integer
        WHERE s.name = accept_timing.name AND s.new_timing IS NOT NULL
$$;
COMMENT ON FUNCTION mill.accept_timing IS
    'Makes the new timing of a schedule the timing in force, for a program that has parsed it. The next tick computes '
    'the next fire, counted from the time at which the timing was set';
GRANT EXECUTE ON FUNCTION mill.accept_timing TO mill_worker, mill_operator;

CREATE OR REPLACE FUNCTION mill.lock_schedule(name text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT FROM mill.schedules s WHERE s.name = lock_schedule.name FOR NO KEY UPDATE
$$;
COMMENT ON FUNCTION mill.lock_schedule IS
    'Locks a schedule until the end of the transaction, for a program that then reads the definition and puts it back '
    'changed: no other session changes the schedule in between';
GRANT EXECUTE ON FUNCTION mill.lock_schedule TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_schedule(name text, timing text, statement text DEFAULT NULL,
    jobs text[] DEFAULT NULL, params jsonb DEFAULT NULL, task jsonb DEFAULT NULL, overlap mill.overlap DEFAULT 'skip',
    catch_up integer DEFAULT 1, max_lateness interval DEFAULT NULL, jitter interval DEFAULT NULL,
    description text DEFAULT NULL, category text DEFAULT NULL, enabled boolean DEFAULT NULL,
    options jsonb DEFAULT NULL) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.check_labels(options - '{expected_duration,deadline,run_timeout}'::text[]);
    SELECT mill.put_schedule(mill.without_nulls(jsonb_build_object('name', name, 'timing', timing,
        'statement', statement, 'jobs', to_jsonb(jobs), 'params', params, 'task', task,
        'overlap', overlap, 'catch_up', catch_up,
        'max_lateness', max_lateness, 'jitter', jitter, 'description', description, 'category', category,
        'enabled', enabled)) || coalesce(options, '{}'), 'call')
$$;
COMMENT ON FUNCTION mill.set_schedule IS
    'Creates or replaces a schedule. Returns new, changed or unchanged. timing: manual, a cadence such as '
    'daily(03:15), or trigger(…). The schedule runs either statement or jobs. task: settings of the statement, '
    '{"params", "queue", "priority", "group", "max_attempts", "timeout", "mode", …}. params: parameters of the runs '
    'of jobs. options: {"tags", "metadata", "expected_duration", "deadline", "run_timeout"}. enabled null: the '
    'schedule stays enabled or disabled as it is. Only a worker can parse a timing: until '
    'one has accepted the new timing of an existing schedule, the old timing stays in force';
GRANT EXECUTE ON FUNCTION mill.set_schedule TO mill_operator;

CREATE OR REPLACE FUNCTION mill.remove_schedules(names text[]) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone mill.schedules;
BEGIN
    PERFORM mill.log_dropped_fires(l.schedule, now()) FROM (SELECT s AS schedule FROM mill.schedules s
        WHERE s.name = ANY (names) AND s.removed_at IS NULL ORDER BY s.id FOR NO KEY UPDATE) AS l;
    FOR gone IN
        UPDATE mill.schedules s SET removed_at = now(), next_tick_at = NULL, next_fire_at = NULL, queued_fire_at = NULL,
                queued_later = NULL, changed_at = now(), changed_by = session_user, version = s.version + 1
            WHERE s.name = ANY (names) AND s.removed_at IS NULL RETURNING s.*
    LOOP
        PERFORM mill.retire_schedule_job(gone.jobs) WHERE gone.own_job;
        PERFORM mill.record_audit('remove_schedules', 'schedule ' || gone.name);
        RETURN NEXT gone.name;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.remove_schedules IS
    'Removes the declarations of schedules, so that the schedules no longer fire. mill.prune_schedule_log deletes them '
    'later. Returns the names of the schedules that existed';
GRANT EXECUTE ON FUNCTION mill.remove_schedules TO mill_worker, mill_operator;

-- Settings of operators ---------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.enable_schedule(name text, enabled boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    found_schedule mill.schedules;
BEGIN
    SELECT s.* INTO found_schedule FROM mill.schedules s WHERE s.name = enable_schedule.name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF enabled AND found_schedule.removed_at IS NOT NULL THEN
        RAISE EXCEPTION 'the declaration of schedule "%" was removed at %', name,
            date_trunc('second', found_schedule.removed_at)
            USING ERRCODE = '55000', HINT = 'Declare the schedule again.';
    ELSIF found_schedule.enabled <> enabled OR found_schedule.timing_finished_at IS NOT NULL THEN
        UPDATE mill.schedules s SET enabled = enable_schedule.enabled, timing_finished_at = NULL,
            changed_at = now(), changed_by = session_user, version = s.version + 1 WHERE s.id = found_schedule.id;
        PERFORM mill.replan_schedule(found_schedule.id);
        PERFORM mill.record_audit('enable_schedule', 'schedule ' || name, jsonb_build_object('enabled', enabled));
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.enable_schedule IS
    'Enables a schedule, so that it fires from now on, or disables it. Returns false if the schedule does not exist';
GRANT EXECUTE ON FUNCTION mill.enable_schedule TO mill_operator;

CREATE OR REPLACE FUNCTION mill.override_schedule(name text, settings jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unknown text;
    before jsonb;
BEGIN
    settings := mill.with_max_attempts(settings);
    SELECT k INTO unknown FROM jsonb_object_keys(settings) AS k
        WHERE k <> ALL (ARRAY['max_attempts', 'retry_interval', 'jitter']);
    IF FOUND THEN
        RAISE EXCEPTION 'cannot override "%"; expected max_attempts, retry_interval or jitter', unknown
            USING ERRCODE = '22023';
    END IF;
    SELECT to_jsonb(s) INTO before FROM mill.schedules s WHERE s.name = override_schedule.name FOR NO KEY UPDATE;
    UPDATE mill.schedules s SET changed_at = now(), changed_by = session_user, version = s.version + 1,
            max_attempts = CASE WHEN settings ? 'max_attempts' THEN (settings->>'max_attempts')::integer
                ELSE s.max_attempts END,
            retry_interval = CASE WHEN settings ? 'retry_interval' THEN (settings->>'retry_interval')::interval
                ELSE s.retry_interval END,
            jitter = CASE WHEN settings ? 'jitter' THEN (settings->>'jitter')::interval ELSE s.jitter END
        WHERE s.name = override_schedule.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_change('override_schedule', 'schedule ' || name, before, (
        SELECT jsonb_object_agg(k, to_jsonb(s)->k) FROM mill.schedules s, jsonb_object_keys(settings) AS k
        WHERE s.name = override_schedule.name));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.override_schedule IS
    'Overrides settings of a schedule, whatever its declaration says: {"max_attempts", "retry_interval", "jitter"}; '
    'null: as declared. Returns false if the schedule does not exist';
GRANT EXECUTE ON FUNCTION mill.override_schedule TO mill_operator;

-- schema/29_runs.sql ------------------------------------------------------------------------------

-- Runs: tables, start, tasks added later.
--
-- Status: 36_run_status.sql.
--
-- A job is a named set of tasks with edges. A run is a frozen copy of one or more jobs, merged when
-- the run starts. The queue does not know about graphs: a task of a run is inserted into mill.tasks
-- when it becomes ready (31_run_advance.sql). Events of finished tasks: mill.run_events, 19_finish.sql.

-- Tables ------------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.runs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    jobs text[] NOT NULL,
    params jsonb NOT NULL,
    tags text[],
    metadata jsonb,
    schedule_id bigint,
    fire_at timestamptz,
    reason text,
    backfill_id bigint,
    state mill.run_state NOT NULL DEFAULT 'running',
    tasks integer NOT NULL DEFAULT 0,
    open integer NOT NULL DEFAULT 0,
    succeeded integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    ignored integer NOT NULL DEFAULT 0,
    cancelled integer NOT NULL DEFAULT 0,
    upstream_failed integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    restarts integer NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_by text NOT NULL DEFAULT session_user,
    restarted_at timestamptz,
    finished_at timestamptz,
    cancelled_at timestamptz,
    cancelled_by text,
    cancel_reason text,
    kill boolean NOT NULL DEFAULT false,
    expected_duration interval,
    late_at timestamptz,
    late_since timestamptz,
    timeout_at timestamptz,
    needs_rescan boolean NOT NULL DEFAULT false,
    dropped text[],
    CONSTRAINT fired_by_a_schedule CHECK (num_nonnulls(schedule_id, fire_at, reason) IN (0, 3)),
    CONSTRAINT finished_has_time CHECK ((state = 'running') = (finished_at IS NULL)),
    CONSTRAINT every_task_counts CHECK (state = 'running'
        OR tasks = succeeded + failed + ignored + cancelled + upstream_failed + skipped)
);
COMMENT ON TABLE mill.runs IS 'Runs: frozen, merged copies of jobs. Kept as long as mill.attempts';
COMMENT ON COLUMN mill.runs.jobs IS 'Names of the jobs, in the order in which they were given';
COMMENT ON COLUMN mill.runs.open IS 'Number of unfinished tasks, as counted by the last mill.advance_run';
COMMENT ON COLUMN mill.runs.needs_rescan IS
    'Whether mill.advance_run must search the run for ready tasks and for completions to propagate, because '
    'mill.run_events need not have an event for each of them';
COMMENT ON COLUMN mill.runs.succeeded IS
    'Number of succeeded tasks. Like failed, ignored, cancelled, upstream_failed and skipped, it is set when the run '
    'finishes. For a run in progress, mill.run_status counts the tasks';
COMMENT ON COLUMN mill.runs.failed IS 'Number of failed tasks without ignore_failure';
COMMENT ON COLUMN mill.runs.ignored IS 'Number of failed tasks with ignore_failure';
COMMENT ON COLUMN mill.runs.upstream_failed IS
    'Number of tasks that did not run because a task before them failed or was cancelled';
COMMENT ON COLUMN mill.runs.skipped IS 'Number of tasks that did not run although no parent failed';
COMMENT ON COLUMN mill.runs.kill IS 'Whether the run was cancelled together with its running tasks';
COMMENT ON COLUMN mill.runs.schedule_id IS 'Schedule that fired the run; null: started directly';
COMMENT ON COLUMN mill.runs.fire_at IS 'Time of the fire that started the run; null: no schedule fired the run';
COMMENT ON COLUMN mill.runs.tags IS
    'Tags of the jobs, of the schedule and of the call that started the run, sorted; null: none';
COMMENT ON COLUMN mill.runs.metadata IS
    'Metadata of the jobs, of the schedule and of the call that started the run, in ascending precedence; null: none';
COMMENT ON COLUMN mill.runs.restarted_at IS
    'Time at which the run, having ended, was restarted last; null: never. Its duration counts from then';
COMMENT ON COLUMN mill.runs.reason IS
    'Reason of the fire: schedule, manual, backfill, or the trigger condition that was met';
COMMENT ON COLUMN mill.runs.backfill_id IS 'Backfill that started the run; null: none';
COMMENT ON COLUMN mill.runs.dropped IS
    'Edges that the run leaves out because none of its jobs contains their parent: parent > child';

-- Used by mill.fire: a schedule fires once per fire time, even if several workers process the schedule. An
-- operator can start further runs for the same time.
CREATE UNIQUE INDEX IF NOT EXISTS runs_fired_once ON mill.runs
    (schedule_id, fire_at, (CASE WHEN reason IN ('manual', 'backfill') THEN id ELSE 0 END))
    WHERE schedule_id IS NOT NULL;
-- A backfill starts one run per instant.
CREATE UNIQUE INDEX IF NOT EXISTS runs_backfill ON mill.runs (backfill_id, fire_at) WHERE backfill_id IS NOT NULL;
-- For the history of one schedule, with keyset pagination.
CREATE INDEX IF NOT EXISTS runs_schedule ON mill.runs (schedule_id, id) WHERE schedule_id IS NOT NULL;
-- Used by mill.blocking_run, and by the fleet metrics, which count the runs in progress.
CREATE INDEX IF NOT EXISTS runs_in_progress ON mill.runs (schedule_id) WHERE state = 'running';
GRANT SELECT (id, state, cancelled_at) ON mill.runs TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.run_tasks (
    run_id bigint NOT NULL,
    node bigint NOT NULL,
    task_id bigint,
    added_by bigint,
    propagated_to bigint NOT NULL DEFAULT 0,
    started_at timestamptz,
    finished_at timestamptz,
    approval_since timestamptz,
    rows bigint,
    expected_duration interval,
    state mill.run_task_state NOT NULL DEFAULT 'waiting',
    outcome mill.outcome,
    priority mill.priority,
    join_mode mill.join_mode NOT NULL DEFAULT 'all',
    parents integer NOT NULL DEFAULT 0,
    satisfied integer NOT NULL DEFAULT 0,
    unsatisfied integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    session_pid integer,
    parent_failed boolean NOT NULL DEFAULT false,
    pending_propagation boolean NOT NULL DEFAULT false,
    takes_results boolean NOT NULL DEFAULT false,
    ignore_failure boolean NOT NULL DEFAULT false,
    approval boolean NOT NULL DEFAULT false,
    approved boolean,
    queue mill.queue_name NOT NULL,
    name mill.label NOT NULL,
    job mill.label,
    group_name mill.label,
    concurrency_key mill.label,
    approval_note text,
    decided_by text,
    message text,
    result jsonb,
    run_as mill.profile_name NOT NULL DEFAULT '',
    params jsonb,
    statement mill.statement NOT NULL,
    options mill.task_options,
    PRIMARY KEY (run_id, node),
    CONSTRAINT run_tasks_name UNIQUE (name, run_id)
) WITH (fillfactor = 80, toast_tuple_target = 512, autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.run_tasks IS 'Tasks of runs, frozen at the start of the run';
COMMENT ON COLUMN mill.run_tasks.task_id IS 'tasks.id and attempts.task_id; null until the task is released';
COMMENT ON COLUMN mill.run_tasks.parents IS
    'Number of edges to parents. satisfied and unsatisfied count the edges whose parent has finished';
COMMENT ON COLUMN mill.run_tasks.parent_failed IS
    'Whether the parent of an unsatisfied edge failed, was cancelled or is upstream_failed';
COMMENT ON COLUMN mill.run_tasks.added_by IS 'Node of the task that has added the task to the run; null: none';
COMMENT ON COLUMN mill.run_tasks.pending_propagation IS
    'Whether the task has finished and its completion is yet to be propagated to the children whose node is greater '
    'than propagated_to';
COMMENT ON COLUMN mill.run_tasks.propagated_to IS
    'Last child to which the completion was propagated; 0: none. -1: the task was added, and mill.advance_run has not '
    'counted it yet. Until then, the completion of a parent is not propagated to it, and it is not cancelled with its '
    'run: this would change the number of open tasks';
COMMENT ON COLUMN mill.run_tasks.takes_results IS 'Whether params refer to results of parents';
COMMENT ON COLUMN mill.run_tasks.job IS
    'Job that declares the task; null: the task was added while the run was in progress';
COMMENT ON COLUMN mill.run_tasks.result IS
    'First row that the task returned, as an object by column, from mill.first_row';
-- Used by mill.advance_run to find ready tasks and tasks still to cancel. Like run_tasks_name, the index
-- does not begin with run_id. Otherwise the planner, with statistics from when the table had few rows,
-- would consider the index as good as the primary key for looking up a node.
CREATE INDEX IF NOT EXISTS run_tasks_state ON mill.run_tasks (state, run_id, node);
CREATE INDEX IF NOT EXISTS run_tasks_pending_propagation ON mill.run_tasks (run_id, node) WHERE pending_propagation;

CREATE SEQUENCE IF NOT EXISTS mill.added_nodes START 1000000000000;
COMMENT ON SEQUENCE mill.added_nodes IS
    'Values of run_tasks.node for tasks that are added to a run in progress. Starts above the nodes of the tasks with '
    'which a run starts';

CREATE TABLE IF NOT EXISTS mill.run_edges (
    run_id bigint NOT NULL,
    parent bigint NOT NULL,
    child bigint NOT NULL,
    expected mill.expected NOT NULL,
    PRIMARY KEY (run_id, parent, child)
);
COMMENT ON TABLE mill.run_edges IS 'Edges of runs, by run_tasks.node';
CREATE INDEX IF NOT EXISTS run_edges_child ON mill.run_edges (run_id, child);

-- Start -------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.runnable_jobs(jobs text[]) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = on AS $$
DECLARE
    wanted text[];
    disabled text[];
    wrong text;
BEGIN
    SELECT array_agg(w.name ORDER BY w.place) INTO wanted FROM (
        SELECT lower(btrim(j.name)) AS name, min(j.place) AS place
        FROM unnest(jobs) WITH ORDINALITY AS j(name, place) WHERE btrim(j.name) <> '' GROUP BY 1) AS w;
    IF wanted IS NULL THEN
        RAISE EXCEPTION 'no job given' USING ERRCODE = '22023';
    END IF;
    SELECT w INTO wrong FROM unnest(wanted) AS w WHERE NOT EXISTS (SELECT FROM mill.jobs j WHERE lower(j.name) = w)
        LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'there is no job "%"', wrong USING ERRCODE = '22023',
            HINT = 'pgmill job list shows all jobs.';
    END IF;
    SELECT array_agg(j.name::text ORDER BY array_position(wanted, lower(j.name))) INTO disabled
        FROM mill.jobs j WHERE lower(j.name) = ANY (wanted) AND j.disabled_at IS NOT NULL;
    IF cardinality(disabled) = cardinality(wanted) THEN
        RAISE EXCEPTION 'job "%" is disabled', array_to_string(disabled, '", "') USING ERRCODE = '22023',
            HINT = 'Enable it with pgmill job enable.';
    ELSIF disabled IS NOT NULL THEN
        RAISE NOTICE 'the run leaves out disabled jobs: %', array_to_string(disabled, ', ');
    END IF;
    -- The names are returned in the spelling of their declaration.
    RETURN (SELECT array_agg(j.name::text ORDER BY array_position(wanted, lower(j.name)))
        FROM mill.jobs j WHERE lower(j.name) = ANY (wanted) AND j.disabled_at IS NULL);
END
$$;
COMMENT ON FUNCTION mill.runnable_jobs IS
    'Returns the declared spelling of these job names, matched without regard to case and without disabled jobs, for '
    'mill.create_run. Raises an error if a job does not exist or all are disabled. A separate function, because its '
    'query needs the nested loops that '
    'mill.create_run disables';

CREATE OR REPLACE FUNCTION mill.lock_groups(run_id bigint, nodes bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM mill.lock_group(g.group_name) FROM (SELECT DISTINCT t.group_name FROM mill.run_tasks t
        WHERE t.run_id = lock_groups.run_id AND (nodes IS NULL OR t.node = ANY (nodes))
            AND t.group_name IS NOT NULL ORDER BY t.group_name) AS g;
END
$$;
COMMENT ON FUNCTION mill.lock_groups IS
    'As mill.lock_group, for the groups of these tasks of a run (nodes null: of all). Without its group, a task could '
    'never be released, and no advance of its run could succeed';

CREATE OR REPLACE FUNCTION mill.insert_run(wanted text[], params jsonb, schedule mill.schedules, fire_at timestamptz,
    reason text, options jsonb) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    run_id bigint;
BEGIN
    WITH given (tags, metadata, precedence) AS (
        SELECT j.tags, j.metadata, array_position(wanted, j.name::text) FROM mill.jobs j WHERE j.name = ANY (wanted)
        UNION ALL SELECT schedule.tags, schedule.metadata, cardinality(wanted) + 1
        UNION ALL SELECT l.tags, l.metadata, cardinality(wanted) + 2 FROM mill.read_labels(options) AS l
    )
    INSERT INTO mill.runs (jobs, params, schedule_id, fire_at, reason, expected_duration, started_at, late_at,
            timeout_at, tags, metadata)
        SELECT wanted, params, schedule.id, fire_at, reason, d.expected_duration, c.now,
            CASE WHEN reason IN ('manual', 'backfill') THEN c.now ELSE coalesce(fire_at, c.now) END + d.deadline,
            c.now + coalesce((options->>'run_timeout')::interval, d.run_timeout),
            (SELECT array_agg(DISTINCT t COLLATE "C" ORDER BY t COLLATE "C") FROM given g, unnest(g.tags) AS t),
            (SELECT jsonb_object_agg(e.key, e.value ORDER BY g.precedence) FROM given g, jsonb_each(g.metadata) AS e)
        FROM mill.declared_durations(wanted, schedule) AS d, clock_timestamp() AS c(now)
        RETURNING runs.id INTO run_id;
    RETURN run_id;
END
$$;
COMMENT ON FUNCTION mill.insert_run IS 'Inserts the row of a run, for mill.create_run. Returns its id';

CREATE OR REPLACE FUNCTION mill.copy_jobs(run_id bigint, wanted text[], params jsonb, overrides jsonb,
    OUT count bigint, OUT dropped text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    default_group CONSTANT text := (SELECT s.default_group FROM mill.settings s);
BEGIN
    WITH chosen AS MATERIALIZED (
        -- A task that several jobs contain is included once, from the job that gives it the highest
        -- priority.
        SELECT DISTINCT ON (t.name) t.*, coalesce(t.priority, j.priority, g.priority) AS chosen_priority,
            coalesce(t.group_name, default_group) AS chosen_group
        FROM mill.jobs j JOIN mill.job_tasks t ON t.job = j.name
            LEFT JOIN mill.groups g ON g.name = coalesce(t.group_name, default_group)
        -- The condition is repeated for both tables, so that the query uses the index of each.
        WHERE j.name = ANY (wanted) AND t.job = ANY (wanted) AND t.disabled_at IS NULL AND t.enabled
        ORDER BY t.name, coalesce(t.priority, j.priority, g.priority, 'normal') DESC,
            array_position(wanted, j.name::text)
    ), numbered AS MATERIALIZED (
        SELECT row_number() OVER (ORDER BY c.name) AS node, c.* FROM chosen c
    ), edge AS MATERIALIZED (
        SELECT DISTINCT ON (e.child, e.parent) e.child AS child_name, e.parent AS parent_name, e.expected,
            c.node AS child, p.node AS parent
        FROM (SELECT e.child::text, e.parent::text, e.expected, array_position(wanted, e.job::text) AS place
                FROM mill.job_edges e WHERE e.job = ANY (wanted) AND e.disabled_at IS NULL
            UNION ALL SELECT d.child, d.parent, d.expected, NULL FROM mill.dependencies d
                WHERE d.disabled_at IS NULL) AS e
            JOIN numbered c ON c.name = e.child LEFT JOIN numbered p ON p.name = e.parent
        -- An edge of a job takes precedence over a dependency of all runs.
        ORDER BY e.child, e.parent, e.place
    ), edges AS (
        INSERT INTO mill.run_edges (run_id, parent, child, expected)
        SELECT run_id, e.parent, e.child, e.expected FROM edge e WHERE e.parent IS NOT NULL
    ), put AS (
        INSERT INTO mill.run_tasks (run_id, node, name, job, statement, params, takes_results, queue, priority,
            group_name, concurrency_key, ignore_failure, join_mode, run_as, parents, state, options,
            expected_duration, approval, approval_note)
        SELECT run_id, n.node, n.name, n.job, n.statement, mill.substitute_params(n.params, params),
            coalesce(n.params @? '$[*]."$result"', false), n.queue, n.chosen_priority, n.chosen_group,
            n.concurrency_key, n.ignore_failure, n.join_mode, n.run_as, coalesce(p.parents, 0),
            CASE WHEN p.parents > 0 THEN 'waiting' ELSE 'ready' END::mill.run_task_state,
            CASE WHEN NOT n.options IS NULL OR NOT (q.store_params AND q.store_output) OR overrides <> '{}'
                THEN mill.resolve_options(jsonb_populate_record(n.options,
                    CASE WHEN (n.options).at_most_once THEN overrides - 'max_attempts' ELSE overrides END),
                    n.queue, n.params) END,
            n.expected_duration, n.approval, n.approval_note
        FROM numbered n LEFT JOIN mill.queues q ON q.name = n.queue
            LEFT JOIN (SELECT e.child, count(e.parent)::integer AS parents FROM edge e GROUP BY e.child) AS p
                ON p.child = n.node
        ORDER BY n.node RETURNING 1
    )
    SELECT (SELECT count(*) FROM put), (SELECT array_agg(e.parent_name || ' > ' || e.child_name
            ORDER BY e.parent_name, e.child_name) FROM edge e WHERE e.parent IS NULL)
        INTO count, dropped;
END
$$;
COMMENT ON FUNCTION mill.copy_jobs IS
    'Copies the tasks and edges of these jobs into a run, for mill.create_run. overrides: options that take precedence '
    'over those of the tasks. Returns the number of tasks, and the edges that are left out';

CREATE OR REPLACE FUNCTION mill.create_run(jobs text[], params jsonb, schedule mill.schedules,
    fire_at timestamptz, reason text, options jsonb, OUT run_id bigint, OUT dropped text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    wanted text[];
    count bigint;
    offered jsonb := '{}';
BEGIN
    IF jsonb_typeof(params) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'params must be a JSON object' USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_size('params of the run are', params), mill.check_durations(options),
        mill.check_labels(options - '{run_timeout,traceparent}'::text[]), mill.check_traceparent(options);
    wanted := mill.runnable_jobs(jobs);
    IF schedule.id IS NOT NULL THEN
        offered := jsonb_build_object('schedule', schedule.name, 'reason', reason,
            'fire_at', to_char(fire_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
    END IF;
    run_id := mill.insert_run(wanted, params, schedule, fire_at, reason, options);
    SELECT c.count, c.dropped INTO count, dropped
        FROM mill.copy_jobs(run_id, wanted, offered || params, jsonb_strip_nulls(jsonb_build_object(
            'traceparent', options->'traceparent', 'max_attempts', schedule.max_attempts,
            'retry_interval', schedule.retry_interval))) AS c;
    IF count = 0 THEN
        RAISE EXCEPTION 'no enabled task in %', array_to_string(wanted, ', ') USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_run(run_id, params), mill.lock_groups(run_id, NULL);
    -- The routines of a profile can have changed since the job was declared.
    IF EXISTS (SELECT FROM mill.profiles p WHERE p.routines IS NOT NULL) THEN
        PERFORM mill.check_routine(t.run_as, t.statement, t.name) FROM mill.run_tasks t
            WHERE t.run_id = create_run.run_id AND t.run_as <> '';
    END IF;
    -- Releases ready tasks immediately, up to a bound; mill.advance_run releases the rest.
    UPDATE mill.runs r SET tasks = count, open = count, dropped = create_run.dropped,
        needs_rescan = mill.release_ready(run_id, NULL, true, 2000) = 2000 WHERE r.id = run_id;
    INSERT INTO mill.run_events (run_id) VALUES (run_id);
    PERFORM mill.wake_workers();
    IF dropped IS NOT NULL THEN
        RAISE NOTICE 'edges to tasks that are not in this run are left out: %', array_to_string(dropped, ', ');
    END IF;
END
$$;
COMMENT ON FUNCTION mill.create_run IS
    'Creates a run as a frozen, merged copy of these jobs, for mill.start_run and mill.fire';

CREATE OR REPLACE FUNCTION mill.start_run(jobs text[], params jsonb DEFAULT '{}', options jsonb DEFAULT NULL,
    OUT run_id bigint, OUT dropped text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT r.run_id, r.dropped INTO start_run.run_id, start_run.dropped
        FROM mill.create_run(start_run.jobs, start_run.params, NULL, NULL, NULL, start_run.options) AS r;
    -- Runs started by programs are not audited; runs started on behalf of a person are.
    IF current_setting('mill.actor', true) <> '' THEN
        PERFORM mill.record_audit('start_run', 'run ' || start_run.run_id, jsonb_build_object('jobs', start_run.jobs));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.start_run IS
    'Starts a run: a frozen, merged copy of these jobs. Case does not matter in the names of jobs. params: values of '
    '{"$param": …}. options: {"tags": […], "metadata": {…}, "run_timeout": "2 h", "traceparent": "00-…"}; the tasks of '
    'the run get the traceparent. dropped: edges that are left out because none of the jobs contains their parent';
GRANT EXECUTE ON FUNCTION mill.start_run TO mill_producer;

CREATE OR REPLACE FUNCTION mill.substitute_params(params jsonb, given jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    missing text;
    filled jsonb;
BEGIN
    IF params @? '$[*]."$param"' IS NOT TRUE THEN
        RETURN params;
    END IF;
    SELECT p.value->>'$param' INTO missing FROM jsonb_array_elements(params) AS p
        WHERE jsonb_typeof(p.value) = 'object' AND p.value ? '$param' AND NOT given ? (p.value->>'$param') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'parameter "%" has no value', missing USING ERRCODE = '22023',
            HINT = format('enqueue --job … --param %s=…', missing);
    END IF;
    SELECT jsonb_agg(CASE WHEN jsonb_typeof(p.value) = 'object' AND p.value ? '$param'
            THEN given->(p.value->>'$param') ELSE p.value END ORDER BY p.place) INTO filled
        FROM jsonb_array_elements(params) WITH ORDINALITY AS p(value, place);
    PERFORM mill.check_size('params with the values of the run are', filled);
    RETURN filled;
END
$$;
COMMENT ON FUNCTION mill.substitute_params IS 'Returns params with the values of {"$param": name} filled in';

CREATE OR REPLACE FUNCTION mill.substitute_results(run_id bigint, params jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_agg(CASE WHEN jsonb_typeof(p.value) = 'object' AND p.value ? '$result'
            THEN coalesce((SELECT t.result->(p.value->>'column') FROM mill.run_tasks t
                WHERE t.run_id = substitute_results.run_id AND t.name = p.value->>'$result'), 'null')
            ELSE p.value END ORDER BY p.place)
    FROM jsonb_array_elements(params) WITH ORDINALITY AS p(value, place)
$$;
COMMENT ON FUNCTION mill.substitute_results IS
    'Returns params with the values of {"$result": task, "column": name} filled in; null for a value that the task '
    'did not return';

CREATE OR REPLACE FUNCTION mill.check_run(run_id bigint, given jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
DECLARE
    wrong record;
    round_trip text;
    names text[];
BEGIN
    SELECT g.name INTO wrong FROM jsonb_object_keys(given) AS g(name) WHERE NOT EXISTS (
        SELECT FROM mill.run_tasks t JOIN mill.job_tasks j ON j.job = t.job AND j.name = t.name
            CROSS JOIN LATERAL jsonb_array_elements(j.params) AS p
        WHERE t.run_id = check_run.run_id AND p.value->>'$param' = g.name)
        -- The caller need not know which tasks an operator has disabled.
        AND NOT EXISTS (SELECT FROM mill.job_tasks j CROSS JOIN LATERAL jsonb_array_elements(j.params) AS p
        WHERE j.job = ANY (SELECT unnest(r.jobs) FROM mill.runs r WHERE r.id = check_run.run_id)
            AND NOT j.enabled AND j.disabled_at IS NULL AND p.value->>'$param' = g.name) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'unknown parameter "%": no task of these jobs uses it', wrong.name USING ERRCODE = '22023';
    END IF;
    SELECT t.name, p.value->>'$result' AS parent INTO wrong
        FROM mill.run_tasks t CROSS JOIN LATERAL jsonb_array_elements(t.params) AS p
        WHERE t.run_id = check_run.run_id AND t.takes_results AND p.value ? '$result' AND NOT EXISTS (
            SELECT FROM mill.run_tasks p2 JOIN mill.run_edges e ON e.run_id = p2.run_id AND e.parent = p2.node
            WHERE p2.run_id = t.run_id AND p2.name = p.value->>'$result' AND e.child = t.node) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" uses a result of "%" but does not wait for it', wrong.name, wrong.parent
            USING ERRCODE = '22023', HINT = CASE WHEN EXISTS (SELECT FROM mill.run_tasks p
                    WHERE p.run_id = check_run.run_id AND p.name = wrong.parent)
                THEN 'Add it to the tasks that the task waits for.'
                ELSE format('Task "%s" is disabled, or in none of the jobs of the run.', wrong.parent) END;
    END IF;
    SELECT array_agg(t.name::text ORDER BY t.node) INTO names FROM mill.run_tasks t
        WHERE t.run_id = check_run.run_id;
    SELECT mill.find_cycle(names, array_agg(e.parent::integer), array_agg(e.child::integer)) INTO round_trip
        FROM mill.run_edges e WHERE e.run_id = check_run.run_id;
    IF round_trip IS NOT NULL THEN
        RAISE EXCEPTION 'dependency cycle: %', round_trip USING ERRCODE = '22023',
            HINT = 'pgmill lineage shows the job or dependency of each edge.';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_run IS
    'Raises an error if the run could not finish or was given an unknown parameter, for mill.create_run';

-- Tasks added to a run in progress ----------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.is_upstream_of(run_id bigint, origin bigint, target bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE way (node) AS (
        SELECT origin UNION
        SELECT e.child FROM way w JOIN mill.run_edges e ON e.run_id = is_upstream_of.run_id AND e.parent = w.node
    )
    SELECT EXISTS (SELECT FROM way w WHERE w.node = target)
$$;
COMMENT ON FUNCTION mill.is_upstream_of IS
    'Returns whether target depends on origin in a run, directly or indirectly, or is the same task';

CREATE OR REPLACE FUNCTION mill.add_run_edges(run_id bigint, added mill.run_tasks, self mill.tasks, after text[],
    before text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    other mill.run_tasks;
    named text;
BEGIN
    FOREACH named IN ARRAY after || before LOOP
        SELECT t.* INTO other FROM mill.run_tasks t WHERE t.run_id = add_run_edges.run_id AND t.name = named;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'run % has no task "%"', run_id, named USING ERRCODE = '22023';
        ELSIF named = ANY (after) THEN
            INSERT INTO mill.run_edges (run_id, parent, child, expected)
                VALUES (run_id, other.node, added.node, 'succeeded');
        -- A task that waits for the calling task cannot start before the calling task commits, and the
        -- new task appears with that commit.
        ELSIF other.state <> 'waiting'
            OR self.node IS NOT NULL AND (other.node = self.node
                OR NOT mill.is_upstream_of(run_id, self.node, other.node))
        THEN
            RAISE EXCEPTION 'task "%" does not wait for the calling task and could start before "%" is added',
                named, added.name
                USING ERRCODE = '55000';
        ELSE
            INSERT INTO mill.run_edges (run_id, parent, child, expected)
                VALUES (run_id, added.node, other.node, 'succeeded');
            IF self.node IS NULL THEN
                -- The parents that the other task had so far may have ended. An advance that has not reached
                -- the event of the new task must not release it.
                UPDATE mill.run_tasks t SET parents = t.parents + 1
                    WHERE t.run_id = add_run_edges.run_id AND t.node = other.node;
            END IF;
            IF mill.is_upstream_of(run_id, other.node, added.node) THEN
                RAISE EXCEPTION 'task "%" would wait for itself', added.name USING ERRCODE = '22023';
            END IF;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.add_run_edges IS
    'Inserts the edges of a task that is added to a run, for mill.add_run_task. self: the calling task';

CREATE OR REPLACE FUNCTION mill.add_run_task(name text, statement text, params jsonb DEFAULT NULL,
    after text[] DEFAULT '{}', before text[] DEFAULT '{}', queue text DEFAULT NULL,
    priority mill.priority DEFAULT NULL, group_name text DEFAULT NULL, concurrency_key text DEFAULT NULL,
    max_attempts integer DEFAULT NULL, retry_interval interval DEFAULT NULL, backoff mill.backoff DEFAULT NULL,
    jitter boolean DEFAULT NULL, timeout interval DEFAULT NULL, mode mill.mode DEFAULT NULL,
    ignore_failure boolean DEFAULT false, run_id bigint DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    self mill.tasks;
    run mill.runs;
    task mill.tasks;
    added mill.run_tasks;
BEGIN
    SELECT t.* INTO self FROM mill.tasks t
        WHERE t.id = nullif(current_setting('mill.task_id', true), '')::bigint AND t.node IS NOT NULL;
    run_id := coalesce(run_id, self.run_id);
    IF run_id IS NULL THEN
        RAISE EXCEPTION 'run_id is required outside of a task of a run' USING ERRCODE = '22023', HINT = 'Pass run_id.';
    ELSIF run_id IS DISTINCT FROM self.run_id THEN
        self := NULL;
        -- The caller is not a task of this run, so without the lock the run could finish meanwhile.
        SELECT r.* INTO run FROM mill.runs r WHERE r.id = run_id FOR NO KEY UPDATE;
    ELSE
        SELECT r.* INTO run FROM mill.runs r WHERE r.id = run_id;
    END IF;
    IF run.state IS DISTINCT FROM 'running' OR run.cancelled_at IS NOT NULL THEN
        RAISE EXCEPTION 'run % is not in progress', run_id USING ERRCODE = '55000';
    END IF;
    statement := mill.check_statement(statement, params);
    task := mill.read_task(jsonb_strip_nulls(jsonb_build_object('traceparent', (self.options).traceparent,
        'queue', queue, 'priority', priority, 'group_name', group_name, 'concurrency_key', concurrency_key,
        'max_attempts', max_attempts, 'retry_interval', retry_interval, 'backoff', backoff, 'jitter', jitter,
        'timeout', timeout, 'mode', mode)) || coalesce(options, '{}'), '{concurrency_key,group_name,priority,queue}');
    task.group_name := coalesce(task.group_name, (SELECT s.default_group FROM mill.settings s));
    PERFORM mill.lock_group(task.group_name) WHERE task.group_name IS NOT NULL;
    PERFORM mill.check_task(task, statement);
    INSERT INTO mill.run_tasks (run_id, node, name, statement, params, queue, priority, group_name,
        concurrency_key, ignore_failure, parents, options, propagated_to, added_by)
    VALUES (run_id, nextval('mill.added_nodes'), name, statement, params, task.queue,
        coalesce(task.priority, (SELECT g.priority FROM mill.groups g WHERE g.name = task.group_name)),
        task.group_name, task.concurrency_key, ignore_failure, cardinality(after),
        mill.resolve_options(task.options, task.queue, params), -1, self.node)
    ON CONFLICT ON CONSTRAINT run_tasks_name DO NOTHING RETURNING run_tasks.* INTO added;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % already has a task "%"', run_id, name USING ERRCODE = '23505';
    END IF;
    PERFORM mill.add_run_edges(run_id, added, self, after, before);
    INSERT INTO mill.run_events (run_id, node) VALUES (run_id, added.node);
END
$$;
COMMENT ON FUNCTION mill.add_run_task IS
    'Adds a task to a run in progress. If a task of the run calls it, the new task appears when the calling task '
    'commits. after: tasks of the run that the new task waits for. before: tasks that wait for the calling task, and '
    'from then on also for the new task. The other arguments are those of mill.enqueue';
GRANT EXECUTE ON FUNCTION mill.add_run_task TO mill_producer;

-- schema/30_unstored.sql --------------------------------------------------------------------------

-- Unstored data of runs: erased when the run ends.
--
-- These are params and results of tasks whose options store_params and store_output are false. While a
-- run is in progress, its tasks need them.

CREATE OR REPLACE FUNCTION mill.options_with_results(run_id bigint, params jsonb, options mill.task_options)
RETURNS mill.task_options
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM jsonb_array_elements(params) AS p
            JOIN mill.run_tasks o ON o.run_id = options_with_results.run_id AND o.name = p.value->>'$result'
            WHERE (o.options).store_output = false)
        THEN jsonb_populate_record(options, '{"store_params": false}') ELSE options END
$$;
COMMENT ON FUNCTION mill.options_with_results IS
    'Returns the options of a task whose params contain results of other tasks: if the output of one of them is not '
    'stored, the params are not stored';

CREATE OR REPLACE FUNCTION mill.erase_unstored(run_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.run_tasks t SET params = CASE WHEN (t.options).store_params IS NULL THEN t.params END,
            result = CASE WHEN (t.options).store_output IS NULL THEN t.result END
        WHERE t.run_id = erase_unstored.run_id
            AND ((t.options).store_params = false AND t.params IS NOT NULL
                OR (t.options).store_output = false AND t.result IS NOT NULL);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- The params of the run can contain values of these tasks; each task has a copy of its own values.
    UPDATE mill.runs r SET params = '{}' WHERE r.id = erase_unstored.run_id AND EXISTS (SELECT FROM mill.run_tasks t
        WHERE t.run_id = r.id AND (t.options).store_params = false);
END
$$;
COMMENT ON FUNCTION mill.erase_unstored IS
    'Erases params and results of an ended run that are not to be stored, for mill.finish_run';

CREATE OR REPLACE FUNCTION mill.check_stored(run_id bigint, nodes bigint[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    erased record;
BEGIN
    SELECT t.name INTO erased FROM mill.run_tasks t WHERE t.run_id = check_stored.run_id AND t.node = ANY (nodes)
        AND (t.options).store_params = false AND t.params IS NULL ORDER BY t.node LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the parameters of task "%" of run % were not stored', erased.name, run_id
            USING ERRCODE = '55000', HINT = 'Start a new run with enqueue --job.';
    END IF;
    SELECT t.name, o.name AS parent INTO erased FROM mill.run_tasks t
        CROSS JOIN LATERAL jsonb_array_elements(t.params) AS p
        JOIN mill.run_tasks o ON o.run_id = t.run_id AND o.name = p.value->>'$result'
        WHERE t.run_id = check_stored.run_id AND t.node = ANY (nodes) AND t.takes_results
            AND o.node <> ALL (nodes) AND o.state = 'succeeded' AND (o.options).store_output = false
        ORDER BY t.node LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the result of task "%", which task "%" of run % uses, was not stored', erased.parent,
            erased.name, run_id USING ERRCODE = '55000',
            HINT = format('pgmill run rerun %s %L runs it and all tasks after it again.', run_id, erased.parent);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_stored IS
    'Raises an error if these tasks of an ended run cannot run again, because params or results were not stored';

-- schema/31_run_advance.sql -----------------------------------------------------------------------

-- Advance of runs: waiting -> ready -> released -> finished.
--
-- Cancel and restart: 33_run_control.sql.
--
-- mill.advance_run locks the row of the run, removes the events of finished tasks from mill.run_events,
-- updates the counters of each child, and releases the tasks that are ready. All of this happens in one
-- transaction, so each event is processed exactly once, even if several workers try or a worker crashes.

CREATE OR REPLACE FUNCTION mill.satisfies(state mill.run_task_state, expected mill.expected) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN expected = 'always' THEN state NOT IN ('waiting', 'ready', 'released')
        WHEN state = 'succeeded' THEN expected IN ('succeeded', 'finished')
        WHEN state = 'failed' THEN expected IN ('failed', 'finished')
        WHEN state = 'cancelled' THEN expected = 'finished' ELSE false END
$$;
COMMENT ON FUNCTION mill.satisfies IS
    'Returns whether the state of a parent satisfies an edge. upstream_failed and skipped satisfy only always';

CREATE OR REPLACE FUNCTION mill.is_failure(state mill.run_task_state) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT state IN ('failed', 'cancelled', 'upstream_failed')
$$;
COMMENT ON FUNCTION mill.is_failure IS
    'Returns whether a child that cannot run because of a parent in this state is upstream_failed. Otherwise the child '
    'is skipped';

CREATE OR REPLACE FUNCTION mill.evaluate_join(join_mode mill.join_mode, parents integer,
    satisfied integer, unsatisfied integer, parent_failed boolean)
RETURNS mill.run_task_state
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN satisfied = parents OR join_mode = 'any' AND satisfied > 0 THEN 'ready'
        WHEN unsatisfied = parents OR join_mode = 'all' AND unsatisfied > 0
            THEN CASE WHEN parent_failed THEN 'upstream_failed' ELSE 'skipped' END
        ELSE 'waiting'
    END::mill.run_task_state
$$;
COMMENT ON FUNCTION mill.evaluate_join IS
    'Returns the new state of a waiting task of a run from its number of parents, satisfied edges and unsatisfied '
    'edges. parent_failed: whether the parent of an unsatisfied edge failed, was cancelled or is upstream_failed';

CREATE OR REPLACE FUNCTION mill.recount_dependencies(run_id bigint, nodes bigint[]) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET plan_cache_mode = force_custom_plan SET enable_nestloop = off SET jit = off AS $$
DECLARE
    never_run integer;
BEGIN
    WITH counted AS MATERIALIZED (
        SELECT c.node, c.join_mode, count(e.parent)::integer AS parents,
            count(*) FILTER (WHERE mill.satisfies(p.state, e.expected))::integer AS satisfied,
            count(*) FILTER (WHERE p.node IS NOT NULL AND NOT mill.satisfies(p.state, e.expected))::integer
                AS unsatisfied,
            coalesce(bool_or(mill.is_failure(p.state) AND NOT mill.satisfies(p.state, e.expected)), false)
                AS parent_failed
        FROM mill.run_tasks c LEFT JOIN mill.run_edges e ON e.run_id = c.run_id AND e.child = c.node
            -- Joins only finished parents whose completion will not be propagated to this child again.
            LEFT JOIN mill.run_tasks p ON p.run_id = e.run_id AND p.node = e.parent
                AND p.state NOT IN ('waiting', 'ready', 'released')
                AND (NOT p.pending_propagation OR p.propagated_to >= c.node)
        WHERE c.run_id = recount_dependencies.run_id AND c.state = 'waiting'
            AND (nodes IS NULL AND c.propagated_to >= 0 OR c.node = ANY (nodes))
        GROUP BY c.node, c.join_mode
    ), evaluated AS MATERIALIZED (
        SELECT c.*, mill.evaluate_join(c.join_mode, c.parents, c.satisfied, c.unsatisfied, c.parent_failed) AS state
        FROM counted c
    ), updated AS (
        UPDATE mill.run_tasks t SET parents = e.parents, satisfied = e.satisfied, unsatisfied = e.unsatisfied,
            parent_failed = e.parent_failed, state = e.state, propagated_to = 0,
            pending_propagation = e.state NOT IN ('waiting', 'ready'),
            finished_at = CASE WHEN e.state NOT IN ('waiting', 'ready') THEN clock_timestamp() END
        FROM evaluated e WHERE t.run_id = recount_dependencies.run_id AND t.node = e.node
        RETURNING t.state
    )
    SELECT count(*) INTO never_run FROM updated u WHERE u.state NOT IN ('waiting', 'ready');
    RETURN never_run;
END
$$;
COMMENT ON FUNCTION mill.recount_dependencies IS
    'Recomputes the counters and states of waiting tasks from their edges (nodes null: of all waiting tasks, except '
    'added tasks that mill.advance_run has not counted yet). '
    'mill.advance_run maintains these counters incrementally. Returns the number of tasks that became upstream_failed '
    'or skipped';

CREATE OR REPLACE FUNCTION mill.propagate_completion(run_id bigint, parents bigint[], search boolean, max_count integer,
    OUT edges_propagated integer, OUT ready bigint[], OUT never_run bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    last_parent bigint;
    last_child bigint;
    searched integer;
BEGIN
    -- A finished parent is not waiting, so this statement updates no row twice. The edges are in the order of their
    -- parents, because a LATERAL subquery with LIMIT can only be run as a nested loop. Rows are updated by ctid, which
    -- no other session changes while the row of the run is locked.
    WITH found AS MATERIALIZED (
        SELECT t.node FROM mill.run_tasks t
        WHERE search AND t.run_id = propagate_completion.run_id AND t.pending_propagation
        ORDER BY t.node LIMIT max_count
    ), source AS MATERIALIZED (
        SELECT w.place, n.node, w.state, w.propagated_to
        FROM (SELECT p.node FROM unnest(parents) AS p(node) UNION SELECT f.node FROM found f) AS n
        CROSS JOIN LATERAL (SELECT t.ctid AS place, t.state, t.propagated_to FROM mill.run_tasks t
            WHERE t.run_id = propagate_completion.run_id AND t.node = n.node LIMIT 1) AS w
        ORDER BY n.node
    ), edge AS MATERIALIZED (
        SELECT t.node AS parent, e.child, mill.satisfies(t.state, e.expected) AS is_satisfied,
            mill.is_failure(t.state) AS is_failure
        FROM source t CROSS JOIN LATERAL (SELECT x.child, x.expected FROM mill.run_edges x
            WHERE x.run_id = propagate_completion.run_id AND x.parent = t.node AND x.child > t.propagated_to
            ORDER BY x.child LIMIT max_count) AS e
        LIMIT max_count
    ), counted AS MATERIALIZED (
        SELECT w.place, w.join_mode, w.parents, w.satisfied + n.satisfied AS satisfied,
            w.unsatisfied + n.unsatisfied AS unsatisfied, w.parent_failed OR n.parent_failed AS parent_failed
        FROM (
            SELECT e.child, count(*) FILTER (WHERE e.is_satisfied)::integer AS satisfied,
                count(*) FILTER (WHERE NOT e.is_satisfied)::integer AS unsatisfied,
                bool_or(e.is_failure AND NOT e.is_satisfied) AS parent_failed
            FROM edge e GROUP BY e.child) AS n
        CROSS JOIN LATERAL (SELECT c.ctid AS place, c.join_mode, c.parents, c.satisfied, c.unsatisfied,
            c.parent_failed FROM mill.run_tasks c
            WHERE c.run_id = propagate_completion.run_id AND c.node = n.child
                -- An added task that is not counted yet gets its counters when it is counted.
                AND c.state = 'waiting' AND c.propagated_to >= 0 LIMIT 1) AS w
    ), evaluated AS MATERIALIZED (
        SELECT c.*, mill.evaluate_join(c.join_mode, c.parents, c.satisfied, c.unsatisfied, c.parent_failed) AS state
        FROM counted c
    ), updated AS (
        UPDATE mill.run_tasks c SET satisfied = e.satisfied, unsatisfied = e.unsatisfied,
            parent_failed = e.parent_failed, state = e.state,
            pending_propagation = e.state NOT IN ('waiting', 'ready'),
            finished_at = CASE WHEN e.state NOT IN ('waiting', 'ready') THEN clock_timestamp() END
        FROM evaluated e WHERE c.ctid = e.place
        RETURNING c.node, c.state
    ), last AS MATERIALIZED (
        SELECT count(*) AS edges, max(e.parent) AS parent,
            (SELECT max(x.child) FROM edge x WHERE x.parent = max(e.parent)) AS child
        FROM edge e
    ), done AS (
        UPDATE mill.run_tasks p SET pending_propagation = false, propagated_to = 0
        FROM source t, last l WHERE p.ctid = t.place AND (l.edges < max_count OR t.node < l.parent)
    )
    SELECT l.edges, l.parent, l.child,
            (SELECT array_agg(u.node) FILTER (WHERE u.state = 'ready') FROM updated u),
            (SELECT array_agg(u.node) FILTER (WHERE u.state NOT IN ('waiting', 'ready')) FROM updated u),
            (SELECT count(*) FROM found)
        INTO edges_propagated, last_parent, last_child, ready, never_run, searched FROM last l;
    IF edges_propagated = max_count THEN
        UPDATE mill.run_tasks p SET propagated_to = last_child
            WHERE p.run_id = propagate_completion.run_id AND p.node = last_parent;
    ELSIF searched = max_count THEN
        edges_propagated := max_count;
    END IF;
END
$$;
COMMENT ON FUNCTION mill.propagate_completion IS
    'For mill.advance_run: propagates the completion of these parents to their children, over up to max_count edges. '
    'search: also of up to max_count other tasks with pending_propagation. edges_propagated: number of edges; '
    'max_count if there may be more edges or more such tasks. ready, never_run: nodes of the children that became '
    'ready, or upstream_failed or skipped';

CREATE OR REPLACE FUNCTION mill.fail_released(task_id bigint, message text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
BEGIN
    DELETE FROM mill.tasks t WHERE t.id = fail_released.task_id RETURNING t.* INTO task;
    PERFORM mill.prepare_history(0);
    -- Appends an event, which a later call of mill.advance_run processes.
    PERFORM mill.record_attempt(task, 'failed', true, jsonb_build_object('message', message,
        'hint', 'Store the value in a table. If only its text form is missing, cast it to text.'));
END
$$;
COMMENT ON FUNCTION mill.fail_released IS
    'For mill.release_ready: ends a task that was just released, without an attempt. An error instead would keep the '
    'whole run from advancing';

CREATE OR REPLACE FUNCTION mill.unusable_result(run_id bigint, params jsonb) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(min(format('column "%s" of task "%s" cannot be a parameter: %s', v.column_name, v.task,
            v.value->>'unusable')) FILTER (WHERE jsonb_typeof(v.value) = 'object'),
        CASE WHEN sum(octet_length(v.value::text)) > (SELECT s.statement_limit_bytes FROM mill.settings s)
            THEN 'the results that are parameters are longer than statement_limit_bytes' END)
    FROM (SELECT p.value->>'column' AS column_name, t.name AS task, t.result->(p.value->>'column') AS value
        FROM jsonb_array_elements(params) AS p(value) JOIN mill.run_tasks t
            ON t.run_id = unusable_result.run_id AND t.name = p.value->>'$result') AS v
$$;
COMMENT ON FUNCTION mill.unusable_result IS
    'Returns an error message if params contain {"$result": task, "column": name} with a value that mill.first_row '
    'could not keep, or values that exceed the size limit together; otherwise null';

CREATE OR REPLACE FUNCTION mill.release_ready(run_id bigint, nodes bigint[], search boolean, max_count integer)
RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    picked integer;
    released integer;
    asking bigint[];
    unusable jsonb;
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT w.* FROM (
            SELECT r.node FROM unnest(nodes) AS r(node)
            UNION
            (SELECT t.node FROM mill.run_tasks t
            WHERE search AND t.run_id = release_ready.run_id AND t.state = 'ready'
                AND (t.approval_since IS NULL OR t.approved) ORDER BY t.node LIMIT max_count)
            ORDER BY node LIMIT max_count) AS n
        CROSS JOIN LATERAL (SELECT t.ctid AS place, t.* FROM mill.run_tasks t
            WHERE t.run_id = release_ready.run_id AND t.node = n.node AND t.state = 'ready' LIMIT 1) AS w
        ORDER BY n.node
    ), task AS MATERIALIZED (
        SELECT p.*, coalesce(p.task_id, nextval('mill.tasks_id_seq')) AS id,
            CASE WHEN p.takes_results THEN mill.unusable_result(p.run_id, p.params) END AS unusable,
            CASE WHEN num_nonnulls(p.group_name, p.concurrency_key) > 0
                OR EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = p.queue)
                THEN mill.required_limits(p.queue, p.group_name, p.run_id, p.concurrency_key) END AS limits
        FROM picked p WHERE NOT p.approval OR p.approved
    ), put AS (
        INSERT INTO mill.tasks (id, name, run_id, node, statement, params, queue, priority, group_name,
            concurrency_key, limits, state, blocking_limit_id, attempt, run_as, options, receipt)
        SELECT t.id, t.name, t.run_id, t.node, t.statement,
            CASE WHEN t.takes_results AND t.unusable IS NULL THEN mill.substitute_results(t.run_id, t.params)
                ELSE t.params END, t.queue,
            coalesce(t.priority, 'normal'), t.group_name, t.concurrency_key, t.limits,
            mill.initial_state(NULL, t.limits), t.limits[1], t.attempts, t.run_as,
            CASE WHEN t.takes_results THEN mill.options_with_results(t.run_id, t.params, t.options) ELSE t.options END,
            CASE WHEN t.run_as <> '' THEN mill.new_receipt(t.run_as) END
        FROM task t
    ), moved AS (
        UPDATE mill.run_tasks r SET state = 'released', task_id = t.id
        FROM task t WHERE r.ctid = t.place RETURNING 1
    ), asked AS (
        UPDATE mill.run_tasks r SET approval_since = clock_timestamp()
        FROM picked p WHERE r.ctid = p.place AND p.approval AND p.approved IS NULL RETURNING r.node
    )
    SELECT (SELECT count(*) FROM picked), (SELECT count(*) FROM moved), (SELECT array_agg(a.node) FROM asked a),
            (SELECT jsonb_object_agg(t.id, t.unusable) FROM task t WHERE t.unusable IS NOT NULL)
        INTO picked, released, asking, unusable;
    IF asking IS NOT NULL THEN
        PERFORM mill.request_approvals(run_id, asking);
    END IF;
    IF unusable IS NOT NULL THEN
        PERFORM mill.fail_released(u.key::bigint, u.value) FROM jsonb_each_text(unusable) AS u;
    END IF;
    RETURN CASE WHEN picked = max_count THEN max_count ELSE released END;
END
$$;
COMMENT ON FUNCTION mill.release_ready IS
    'For mill.advance_run: releases these tasks of a run (ready -> released), up to max_count. search: also other '
    'ready tasks of the run. A task that needs approval begins to wait for it instead; one with a parameter that the '
    'run could not keep has failed at once. Returns the number of released tasks; max_count if there may be more';

CREATE OR REPLACE FUNCTION mill.cancel_open_tasks(run_id bigint, kill boolean, max_count integer, OUT waited integer,
    OUT more boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live integer;
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT t.node FROM mill.run_tasks t
        WHERE t.run_id = cancel_open_tasks.run_id AND t.state IN ('waiting', 'ready') AND t.propagated_to >= 0
        LIMIT max_count
    )
    UPDATE mill.run_tasks t SET state = 'cancelled', finished_at = clock_timestamp()
        FROM picked p WHERE t.run_id = cancel_open_tasks.run_id AND t.node = p.node;
    GET DIAGNOSTICS waited = ROW_COUNT;
    -- SKIP LOCKED leaves out a task that is being claimed, and a task that is about to be attempted
    -- again and waits for the row of this run. A later call handles such tasks. A cancelled task
    -- appends an event, as every task that finishes does.
    SELECT count(mill.cancel_task(s.id, running => false)) INTO live FROM (
        SELECT t.id FROM mill.run_tasks r JOIN mill.tasks t ON t.id = r.task_id
        WHERE r.run_id = cancel_open_tasks.run_id AND r.state = 'released' AND t.state <> 'running'
        ORDER BY t.id LIMIT max_count FOR NO KEY UPDATE OF t SKIP LOCKED) AS s;
    -- Another session may keep a task locked for long, so a poll calls this function again, not the caller.
    INSERT INTO mill.run_events (run_id) SELECT cancel_open_tasks.run_id WHERE EXISTS (
        SELECT FROM mill.run_tasks r JOIN mill.tasks t ON t.id = r.task_id
        WHERE r.run_id = cancel_open_tasks.run_id AND r.state = 'released' AND t.state <> 'running');
    -- This statement comes last. So a task that is claimed in the meantime is found by the statement before
    -- or by this one.
    IF kill THEN
        INSERT INTO mill.cancel_requests (task_id)
            SELECT t.id FROM mill.run_tasks r JOIN mill.tasks t ON t.id = r.task_id
            WHERE r.run_id = cancel_open_tasks.run_id AND r.state = 'released' AND t.state = 'running'
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            PERFORM pg_notify('mill', 'cancel');
        END IF;
    END IF;
    more := waited = max_count OR live > 0;
END
$$;
COMMENT ON FUNCTION mill.cancel_open_tasks IS
    'For mill.advance_run: cancels the tasks of a cancelled run that are not running; with kill, also requests the '
    'cancel of its running tasks. waited: number of cancelled tasks that were never released. more: whether to call '
    'it again at once. If other sessions have locked tasks, inserts an event, so that it is called again later';

CREATE OR REPLACE FUNCTION mill.finish_run(run_id bigint) RETURNS mill.run_state
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended mill.runs;
BEGIN
    UPDATE mill.runs r SET tasks = n.tasks, open = 0, succeeded = n.succeeded, failed = n.failed, ignored = n.ignored,
            cancelled = n.cancelled, upstream_failed = n.upstream_failed, skipped = n.skipped,
            finished_at = clock_timestamp(),
            state = CASE WHEN r.cancelled_at IS NOT NULL THEN 'cancelled' WHEN n.failed > 0 THEN 'failed'
                WHEN n.cancelled > 0 THEN 'cancelled' ELSE 'succeeded' END::mill.run_state
        FROM (SELECT count(*) AS tasks, count(*) FILTER (WHERE t.state = 'succeeded') AS succeeded,
                count(*) FILTER (WHERE t.state = 'failed' AND NOT t.ignore_failure) AS failed,
                count(*) FILTER (WHERE t.state = 'failed' AND t.ignore_failure) AS ignored,
                count(*) FILTER (WHERE t.state = 'cancelled') AS cancelled,
                count(*) FILTER (WHERE t.state = 'upstream_failed') AS upstream_failed,
                count(*) FILTER (WHERE t.state = 'skipped') AS skipped
            FROM mill.run_tasks t WHERE t.run_id = finish_run.run_id) AS n
        WHERE r.id = finish_run.run_id RETURNING r.* INTO ended;
    PERFORM mill.mark_late(finish_run.run_id) WHERE ended.late_at IS NOT NULL;
    PERFORM mill.erase_unstored(finish_run.run_id);
    -- Tasks that were enqueued with the id of the run may still wait for its limits. mill.prune deletes these later.
    -- mill.renew_chains gives the other tasks that need one of the deleted limits a new one.
    DELETE FROM mill.limits l WHERE l.id IN (SELECT g.id FROM mill.limits g
        WHERE g.kind = 'group' AND g.run_id = finish_run.run_id
            AND NOT EXISTS (SELECT FROM mill.permits p WHERE p.limit_id = g.id)
            AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id = g.id)
        FOR UPDATE SKIP LOCKED);
    IF ended.schedule_id IS NOT NULL THEN
        PERFORM mill.log_completed(ended);
    END IF;
    PERFORM mill.notify_run(ended);
    RETURN ended.state;
END
$$;
COMMENT ON FUNCTION mill.finish_run IS
    'For mill.advance_run: finishes a run and returns its final state, cancelled, failed or succeeded';

CREATE OR REPLACE FUNCTION mill.await_schedule(schedule_id bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
BEGIN
    PERFORM FROM mill.schedules s WHERE s.id = await_schedule.schedule_id FOR NO KEY UPDATE;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION mill.await_schedule IS
    'Locks the row of a schedule. Returns false if it cannot get the lock within 0.2 s, for example because a '
    'transaction that has changed the schedule is still open';

CREATE OR REPLACE FUNCTION mill.end_released(run_id bigint, events mill.run_events[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    nodes bigint[];
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT e.*, w.place FROM unnest(events) AS e CROSS JOIN LATERAL (
            SELECT t.ctid AS place FROM mill.run_tasks t
            WHERE t.run_id = end_released.run_id AND t.node = e.node AND t.state = 'released' LIMIT 1) AS w
        WHERE e.outcome IS NOT NULL
    ), moved AS (
        UPDATE mill.run_tasks t SET
            state = CASE e.outcome WHEN 'succeeded' THEN 'succeeded' WHEN 'cancelled' THEN 'cancelled'
                ELSE 'failed' END::mill.run_task_state,
            outcome = e.outcome, pending_propagation = true, propagated_to = 0, attempts = e.attempts,
            started_at = e.started_at, finished_at = e.finished_at, rows = e.rows, session_pid = e.session_pid,
            message = e.message, result = e.result
        FROM ended e WHERE t.ctid = e.place
        RETURNING t.node
    )
    SELECT array_agg(m.node) INTO nodes FROM moved m;
    RETURN nodes;
END
$$;
COMMENT ON FUNCTION mill.end_released IS
    'For mill.advance_run: ends the tasks of these events (released -> succeeded | failed | cancelled). Returns their '
    'nodes; null: there are none';

CREATE OR REPLACE FUNCTION mill.release_children(run_id bigint, ended bigint[], search boolean, max_count integer,
    OUT never_run integer, OUT released integer, OUT more boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    step record;
    ready bigint[];
BEGIN
    never_run := 0;
    LOOP
        SELECT p.* INTO step FROM mill.propagate_completion(run_id, ended, search, max_count) AS p;
        ready := ready || step.ready;
        ended := step.never_run;
        never_run := never_run + coalesce(cardinality(ended), 0);
        more := step.edges_propagated = max_count OR coalesce(cardinality(ready), 0) >= max_count;
        EXIT WHEN more OR ended IS NULL;
    END LOOP;
    released := mill.release_ready(run_id, ready, search, max_count);
    more := more OR released = max_count;
END
$$;
COMMENT ON FUNCTION mill.release_children IS
    'For mill.advance_run: propagates the completion of these tasks, also by way of children that never run, and '
    'releases the tasks that became ready. search: also other ended and ready tasks of the run. never_run: number of '
    'tasks that became upstream_failed or skipped. more: whether there may be more to propagate or to release';

CREATE OR REPLACE FUNCTION mill.advance_run(run_id bigint, OUT released integer, OUT ended mill.run_state,
    OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    -- Bounds the duration of each statement for runs of any size.
    max_count CONSTANT integer := 2000;
    run mill.runs;
    events mill.run_events[];
    added bigint[];
    ended_nodes bigint[];
    step record;
BEGIN
    released := 0;
    more := false;
    -- Asynchronous commit is safe here, as for a claim: WAL is written in order, so an effect of a
    -- released task survives a crash only if the release does.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM FROM mill.runs r WHERE r.id = advance_run.run_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND AND NOT mill.await_run(run_id, false) THEN
        -- The events remain, so a poll calls this function again.
        RETURN;
    END IF;
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = advance_run.run_id;
    -- The lock excludes other sessions that advance this run; each of the following statements sees the
    -- changes of the earlier ones.
    WITH taken AS (
        DELETE FROM mill.run_events e WHERE e.id = ANY (ARRAY(SELECT x.id FROM mill.run_events x
            WHERE x.run_id = advance_run.run_id ORDER BY x.id LIMIT max_count))
        RETURNING e AS event
    )
    SELECT array_agg(t.event), array_agg((t.event).node) FILTER (WHERE (t.event).outcome IS NULL
            AND (t.event).node IS NOT NULL)
        INTO events, added FROM taken t;
    IF run.state IS DISTINCT FROM 'running' THEN
        RETURN;
    END IF;
    ended_nodes := mill.end_released(run.id, events);
    run.open := run.open - coalesce(cardinality(ended_nodes), 0);
    IF added IS NOT NULL THEN
        run.tasks := run.tasks + cardinality(added);
        run.open := run.open + cardinality(added) - mill.recount_dependencies(run.id, added || ARRAY(
            SELECT e.child FROM mill.run_edges e WHERE e.run_id = run.id AND e.parent = ANY (added)));
        run.needs_rescan := true;
    END IF;
    IF run.cancelled_at IS NOT NULL THEN
        SELECT c.waited, c.more INTO step FROM mill.cancel_open_tasks(run.id, run.kill, max_count) AS c;
        run.open := run.open - step.waited;
        run.needs_rescan := true;
        more := step.more;
    ELSE
        SELECT c.* INTO step FROM mill.release_children(run.id, ended_nodes, run.needs_rescan, max_count) AS c;
        run.open := run.open - step.never_run;
        run.needs_rescan := step.more;
        released := step.released;
        more := step.more;
    END IF;
    more := more OR coalesce(cardinality(events), 0) = max_count;
    UPDATE mill.runs r SET tasks = run.tasks, open = run.open, needs_rescan = run.needs_rescan
        WHERE r.id = run.id AND (r.tasks, r.open, r.needs_rescan) <> (run.tasks, run.open, run.needs_rescan);
    IF NOT more AND run.open = 0
        -- The end of the run changes its schedule, unless a backfill has started it.
        AND (run.schedule_id IS NULL OR run.backfill_id IS NOT NULL OR mill.await_schedule(run.schedule_id))
    THEN
        ended := mill.finish_run(run.id);
    ELSIF more OR run.open = 0 THEN
        -- With this event, a poll calls this function again, also if the caller crashes before the next pass.
        INSERT INTO mill.run_events (run_id) VALUES (run.id);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.advance_run IS
    'Processes the events of finished tasks, propagates the completions to the children, releases ready tasks, and '
    'finishes the run when no task is open. Each call does a bounded amount of work. more: whether to call it again. '
    'ended: final state, if this call finished the run';
GRANT EXECUTE ON FUNCTION mill.advance_run TO mill_worker;

-- schema/32_run_approvals.sql ---------------------------------------------------------------------

-- Approvals: tasks of a run that a person has to approve.
--
-- When its parents have ended as its edges require, such a task is ready, and mill.release_ready leaves it out. The
-- transaction of mill.approve releases it, so a task that is ready and needs approval is not decided. Every
-- rule for ready tasks holds for it: it counts as open, and a cancel of the run ends it.

COMMENT ON COLUMN mill.job_tasks.approval IS 'Whether a person has to approve the task in each run before it starts';
COMMENT ON COLUMN mill.job_tasks.approval_note IS 'What the person has to check, as free text; null: none';
COMMENT ON COLUMN mill.run_tasks.approval IS 'As in mill.job_tasks';
COMMENT ON COLUMN mill.run_tasks.approval_note IS 'As in mill.job_tasks';
COMMENT ON COLUMN mill.run_tasks.approval_since IS
    'Time since which the task waits, or has waited, for approval; null: its parents have not ended';
COMMENT ON COLUMN mill.run_tasks.approved IS 'Whether the task was approved or rejected; null: not decided';
COMMENT ON COLUMN mill.run_tasks.decided_by IS
    'Person who approved or rejected the task: mill.actor, or else the login; null: not decided';
-- Used by mill.approvals_needed. Empty unless a task waits for approval.
CREATE INDEX IF NOT EXISTS run_tasks_approval ON mill.run_tasks (approval_since)
    WHERE approval AND state = 'ready';

CREATE OR REPLACE FUNCTION mill.request_approvals(run_id bigint, nodes bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.notify('approval_needed',
            mill.run_subject(r) || jsonb_build_object('task', t.name, 'job', t.job, 'queue', t.queue),
            jsonb_build_object('note', t.approval_note))
        FROM mill.runs r JOIN mill.run_tasks t ON t.run_id = r.id
        WHERE r.id = request_approvals.run_id AND t.node = ANY (nodes) ORDER BY t.node;
END
$$;
COMMENT ON FUNCTION mill.request_approvals IS
    'Inserts the notifications of tasks that begin to wait for approval, for mill.release_ready';

CREATE OR REPLACE FUNCTION mill.decide_approval(run_id bigint, task text, approve boolean, reason text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run mill.runs;
    found_task mill.run_tasks;
    person text := coalesce(left(nullif(current_setting('mill.actor', true), ''), 200), session_user);
BEGIN
    -- The lock excludes other decisions, and every other change of the run.
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = decide_approval.run_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no run %', run_id USING ERRCODE = '22023', HINT = 'pgmill run list shows the runs.';
    END IF;
    SELECT t.* INTO found_task FROM mill.run_tasks t WHERE t.run_id = run.id AND t.name = task;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % has no task "%"', run_id, task USING ERRCODE = '22023',
            HINT = format('pgmill run show %s --all lists its tasks.', run_id);
    ELSIF found_task.state <> 'ready' OR NOT found_task.approval OR run.cancelled_at IS NOT NULL THEN
        RAISE EXCEPTION 'task "%" of run % does not wait for approval: %', task, run_id, CASE
                WHEN NOT found_task.approval THEN 'it needs none'
                WHEN found_task.approved IS NOT NULL THEN format('%s has %s it', found_task.decided_by,
                    CASE WHEN found_task.approved THEN 'approved' ELSE 'rejected' END)
                WHEN run.state = 'cancelled' THEN 'its run is cancelled'
                WHEN run.state = 'running' AND run.cancelled_at IS NOT NULL THEN 'its run is being cancelled'
                WHEN found_task.state = 'waiting' THEN 'its parents have not ended'
                ELSE format('it is %s', found_task.state) END
            USING ERRCODE = '55000', HINT = format('pgmill why %s/%s', run_id, task);
    END IF;
    UPDATE mill.run_tasks t SET approved = approve, decided_by = person,
            approval_since = coalesce(t.approval_since, clock_timestamp()),
            state = CASE WHEN approve THEN t.state ELSE 'cancelled' END, pending_propagation = NOT approve,
            propagated_to = 0, finished_at = CASE WHEN NOT approve THEN clock_timestamp() END,
            message = CASE WHEN NOT approve THEN concat_ws(': ', 'rejected by ' || person, reason) END
        WHERE t.run_id = run.id AND t.node = found_task.node;
    PERFORM mill.record_audit(CASE WHEN approve THEN 'approve' ELSE 'reject' END, 'run ' || run.id,
        jsonb_strip_nulls(jsonb_build_object('task', task, 'reason', reason)));
    RETURN found_task.node;
END
$$;
COMMENT ON FUNCTION mill.decide_approval IS
    'For mill.approve and mill.reject: locks the run and records the decision. Returns the node of the task. Raises an '
    'error if the task does not wait for approval';

CREATE OR REPLACE FUNCTION mill.approve(run_id bigint, task text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.release_ready(run_id, ARRAY[mill.decide_approval(run_id, task, true)], false, 1);
    IF EXISTS (SELECT FROM mill.run_tasks t
        WHERE t.run_id = approve.run_id AND t.name = task AND t.state = 'ready')
    THEN
        RAISE EXCEPTION 'task "%" of run % cannot enter its queue now: another transaction is creating or removing the '
            'limit of its concurrency key', task, run_id USING ERRCODE = '55P03',
            HINT = 'Approve the task again when that transaction has ended.';
    END IF;
    PERFORM pg_notify('mill', 'work');
END
$$;
COMMENT ON FUNCTION mill.approve IS
    'Approves a task of a run that waits for approval, so that it enters its queue. Raises an error if the task does '
    'not wait for approval, for example because somebody else has decided, or if it cannot enter its queue now';
GRANT EXECUTE ON FUNCTION mill.approve TO mill_operator;

CREATE OR REPLACE FUNCTION mill.reject(run_id bigint, task text, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.decide_approval(run_id, task, false, reason);
    UPDATE mill.runs r SET open = r.open - 1, needs_rescan = true WHERE r.id = reject.run_id;
    PERFORM mill.advance_now(run_id);
END
$$;
COMMENT ON FUNCTION mill.reject IS
    'Rejects a task of a run that waits for approval: the task is cancelled, and its children follow their edges. '
    'Raises an error if the task does not wait for approval';
GRANT EXECUTE ON FUNCTION mill.reject TO mill_operator;

CREATE OR REPLACE VIEW mill.approvals_needed AS
    SELECT t.run_id, r.jobs, (SELECT s.name FROM mill.schedules s WHERE s.id = r.schedule_id) AS schedule,
        t.name AS task, t.approval_note AS note, t.approval_since AS since, now() - t.approval_since AS waited
    FROM mill.run_tasks t JOIN mill.runs r ON r.id = t.run_id
    WHERE t.approval AND t.state = 'ready' AND t.approval_since IS NOT NULL;
COMMENT ON VIEW mill.approvals_needed IS 'Tasks of runs that wait for approval';

-- schema/33_run_control.sql -----------------------------------------------------------------------

-- Control of runs: cancel, restart, rerun, and the retry of a task.

CREATE OR REPLACE FUNCTION mill.advance_now(run_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unfinished boolean;
    durability text := current_setting('synchronous_commit');
BEGIN
    -- If no task is left to run, the run ends here, also without a worker. The number of passes is limited;
    -- workers do the rest.
    INSERT INTO mill.run_events (run_id) VALUES (advance_now.run_id);
    FOR pass IN 1..10 LOOP
        SELECT a.more INTO unfinished FROM mill.advance_run(advance_now.run_id) AS a;
        EXIT WHEN NOT unfinished;
    END LOOP;
    -- As the other actions of operators, also where transactions can be prepared.
    PERFORM pg_notify('mill', 'work');
    -- An operator's action is durable, unlike an advance of a run.
    PERFORM set_config('synchronous_commit', durability, true);
END
$$;
COMMENT ON FUNCTION mill.advance_now IS
    'Advances a run within the action of an operator, for mill.cancel_run and mill.reject';

CREATE OR REPLACE FUNCTION mill.cancel_run(run_id bigint, kill boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_state mill.run_state;
BEGIN
    PERFORM mill.require_read_committed('mill.cancel_run');
    SELECT r.state INTO found_state FROM mill.runs r WHERE r.id = cancel_run.run_id FOR NO KEY UPDATE;
    IF found_state IS DISTINCT FROM 'running' THEN
        RETURN coalesce(found_state::text, 'not found');
    END IF;
    UPDATE mill.runs r SET cancelled_at = coalesce(r.cancelled_at, now()), kill = r.kill OR cancel_run.kill,
        cancelled_by = coalesce(r.cancelled_by, session_user) WHERE r.id = cancel_run.run_id;
    PERFORM mill.advance_now(run_id);
    PERFORM mill.record_audit('cancel_run', 'run ' || run_id, jsonb_build_object('kill', kill));
    RETURN 'cancelling';
END
$$;
COMMENT ON FUNCTION mill.cancel_run IS
    'Cancels a run: no further task starts. Running tasks finish; with kill, they are cancelled too. Returns '
    'cancelling, or the state of a run that has finished, or not found. Requires READ COMMITTED';
GRANT EXECUTE ON FUNCTION mill.cancel_run TO mill_operator;

CREATE OR REPLACE FUNCTION mill.tasks_added_by(run_id bigint, nodes bigint[]) RETURNS bigint[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE added (node) AS (
        SELECT t.node FROM mill.run_tasks t WHERE t.run_id = tasks_added_by.run_id AND t.added_by = ANY (nodes)
        UNION
        SELECT t.node FROM added a JOIN mill.run_tasks t ON t.run_id = tasks_added_by.run_id AND t.added_by = a.node
    )
    SELECT coalesce(array_agg(a.node), '{}') FROM added a
$$;
COMMENT ON FUNCTION mill.tasks_added_by IS
    'Returns the tasks that tasks of a run have added to it, directly or indirectly';

CREATE OR REPLACE FUNCTION mill.wait_again(run_id bigint, nodes bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    step record;
BEGIN
    DELETE FROM mill.cancel_requests c USING mill.run_tasks t
        WHERE t.run_id = wait_again.run_id AND t.node = ANY (nodes) AND c.task_id = t.task_id;
    UPDATE mill.run_tasks t SET state = 'waiting', outcome = NULL, pending_propagation = false, propagated_to = 0,
            started_at = NULL, finished_at = NULL, rows = NULL, session_pid = NULL, message = NULL, result = NULL,
            approval_since = NULL, approved = NULL, decided_by = NULL
        WHERE t.run_id = wait_again.run_id AND t.node = ANY (nodes) AND t.propagated_to >= 0;
    -- A task that was ready, for example waiting for its approval, waits for its parent again.
    UPDATE mill.run_tasks t SET state = 'waiting'
        WHERE t.run_id = wait_again.run_id AND t.state = 'ready' AND t.propagated_to >= 0
            AND EXISTS (SELECT FROM mill.run_edges e
                WHERE e.run_id = wait_again.run_id AND e.child = t.node AND e.parent = ANY (nodes));
    PERFORM mill.recount_dependencies(run_id, NULL);
    UPDATE mill.run_tasks t SET approval_since = NULL, approved = NULL, decided_by = NULL
        WHERE t.run_id = wait_again.run_id AND t.state = 'waiting' AND t.approval_since IS NOT NULL;
    -- Also tells the tasks that can never run because of their parents.
    LOOP
        SELECT p.* INTO step FROM mill.propagate_completion(run_id, NULL, true, 2000) AS p;
        EXIT WHEN step.edges_propagated < 2000 AND step.never_run IS NULL;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.wait_again IS
    'For mill.run_again: makes these tasks of a run wait for their parents as if they had never run, and ready tasks '
    'after them, too (-> waiting). Then evaluates all waiting tasks (waiting -> ready | upstream_failed | skipped)';

CREATE OR REPLACE FUNCTION mill.run_again(run mill.runs, nodes bigint[], action text, details jsonb) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    added CONSTANT bigint[] := mill.tasks_added_by(run.id, nodes);
    busy text;
    names text[];
BEGIN
    IF run.state = 'running' AND run.cancelled_at IS NOT NULL THEN
        RAISE EXCEPTION 'run % is being cancelled', run.id USING ERRCODE = '55000',
            HINT = 'Wait until its running tasks have ended, or cancel them with pgmill run cancel --kill.';
    END IF;
    SELECT t.name INTO busy FROM mill.run_tasks t WHERE t.run_id = run.id AND t.node = ANY (nodes || added)
        AND t.state IN ('ready', 'released') ORDER BY t.node LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" of run % has not ended', busy, run.id USING ERRCODE = '55000',
            HINT = 'Wait until it has ended, or cancel it.';
    END IF;
    -- The tasks that have added these tasks add them again.
    DELETE FROM mill.run_events e WHERE e.run_id = run.id AND e.node = ANY (added);
    DELETE FROM mill.run_edges e WHERE e.run_id = run.id AND (e.parent = ANY (added) OR e.child = ANY (added));
    DELETE FROM mill.run_tasks t WHERE t.run_id = run.id AND t.node = ANY (added);
    nodes := ARRAY(SELECT n FROM unnest(nodes) AS n WHERE n <> ALL (added));
    PERFORM mill.check_stored(run.id, nodes) WHERE run.state <> 'running';
    -- Groups can be gone, and the routines of a profile can have changed, since the run started.
    PERFORM mill.lock_groups(run.id, nodes);
    IF EXISTS (SELECT FROM mill.profiles p WHERE p.routines IS NOT NULL) THEN
        PERFORM mill.check_routine(t.run_as, t.statement, t.name) FROM mill.run_tasks t
            WHERE t.run_id = run.id AND t.node = ANY (nodes) AND t.run_as <> '';
    END IF;
    UPDATE mill.runs r SET state = 'running', finished_at = NULL, cancelled_at = NULL, cancelled_by = NULL,
            kill = false, cancel_reason = NULL, restarts = r.restarts + 1, restarted_at = c.now,
            timeout_at = r.timeout_at + (c.now - coalesce(r.restarted_at, r.started_at)),
            -- The deadline counts from the restart, too, unless the run is late already.
            late_at = CASE WHEN r.late_since IS NOT NULL THEN r.late_at
                ELSE r.late_at + (c.now - coalesce(r.restarted_at, r.started_at)) END
        FROM clock_timestamp() AS c(now)
        WHERE r.id = run.id AND r.state <> 'running';
    PERFORM mill.wait_again(run.id, nodes);
    -- The answer leaves out tasks that can never run because of their parents.
    SELECT array_agg(t.name::text ORDER BY t.node) INTO names FROM mill.run_tasks t
        WHERE t.run_id = run.id AND t.node = ANY (nodes) AND t.state NOT IN ('upstream_failed', 'skipped');
    IF names IS NULL THEN
        RAISE EXCEPTION 'none of these tasks of run % can run: their parents have not ended as required', run.id
            USING ERRCODE = '55000', HINT = CASE WHEN run.failed > 0
                THEN format('pgmill run restart %s runs the failed tasks as well.', run.id)
                ELSE format('pgmill run rerun %s runs all its tasks again.', run.id) END;
    END IF;
    PERFORM mill.release_ready(run.id, NULL, true, 2000), pg_notify('mill', 'work');
    -- The next advance counts a task that was added since the last one.
    UPDATE mill.runs r SET needs_rescan = true, (tasks, open) = (SELECT count(*),
            count(*) FILTER (WHERE t.state IN ('waiting', 'ready', 'released'))
            FROM mill.run_tasks t WHERE t.run_id = r.id AND t.propagated_to >= 0)
        WHERE r.id = run.id;
    INSERT INTO mill.run_events (run_id) VALUES (run.id);
    PERFORM mill.record_audit(action, 'run ' || run.id, details || jsonb_build_object('tasks', cardinality(names))
        || CASE WHEN run.state = 'running' THEN '{}' ELSE jsonb_strip_nulls(jsonb_build_object('state', run.state,
            'reason', run.cancel_reason, 'started_at', run.started_at, 'finished_at', run.finished_at)) END);
    RETURN QUERY SELECT unnest(names);
END
$$;
COMMENT ON FUNCTION mill.run_again IS
    'Runs these tasks of a locked run again, for mill.restart_run, mill.rerun_run and mill.retry_run_task. A run that '
    'has ended is in progress again. Removes the tasks that these tasks have added to the run. Returns the names of '
    'the tasks, except those that cannot run because of tasks before them. Raises an error if that leaves none, if a '
    'task has not ended, if its group does not exist, or if its profile does not allow its statement';

CREATE OR REPLACE FUNCTION mill.restart_run(run_id bigint, failed boolean DEFAULT true,
    never_run boolean DEFAULT true, downstream boolean DEFAULT false, force boolean DEFAULT false)
RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run mill.runs;
    nodes bigint[];
BEGIN
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = restart_run.run_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no run %', run_id USING ERRCODE = '22023';
    ELSIF run.state = 'running' THEN
        RAISE EXCEPTION 'run % is still running', run_id USING ERRCODE = '55000',
            HINT = 'To retry one of its tasks, use pgmill run retry; to stop the run, use pgmill run cancel.';
    ELSIF run.state = 'cancelled' AND NOT force THEN
        RAISE EXCEPTION 'run % is cancelled, not failed', run_id USING ERRCODE = '55000',
            HINT = 'pgmill run restart --force runs the tasks that did not succeed.';
    END IF;
    WITH RECURSIVE chosen (node) AS (
        -- Tasks that started and did not succeed, and tasks that never started.
        SELECT t.node FROM mill.run_tasks t WHERE t.run_id = run.id
            AND ((failed OR downstream)
                    -- A task whose parameters cannot be used fails without a start.
                    AND (t.state = 'failed' OR t.state = 'cancelled' AND t.started_at IS NOT NULL)
                OR never_run AND t.state IN ('cancelled', 'upstream_failed', 'skipped') AND t.started_at IS NULL)
        UNION
        -- A task that could not run because of a task before it waits for that task again.
        SELECT c.node FROM chosen p JOIN mill.run_edges e ON e.run_id = run.id AND e.parent = p.node
            JOIN mill.run_tasks c ON c.run_id = run.id AND c.node = e.child
        WHERE downstream OR c.state IN ('upstream_failed', 'skipped')
    )
    SELECT array_agg(c.node) INTO nodes FROM chosen c;
    IF nodes IS NULL THEN
        RAISE EXCEPTION 'run % has no such task: % of % tasks succeeded', run_id, run.succeeded, run.tasks
            USING ERRCODE = '55000', HINT = format('pgmill run rerun %s runs all its tasks again.', run_id);
    END IF;
    RETURN QUERY SELECT mill.run_again(run, nodes, 'restart_run', jsonb_build_object('failed', failed,
        'never_run', never_run, 'downstream', downstream, 'force', force));
END
$$;
COMMENT ON FUNCTION mill.restart_run IS
    'Runs those tasks of a run that did not succeed again. The run has failed (force: or was cancelled). failed: tasks '
    'that started and did not succeed, and the tasks that did not run because of them. never_run: tasks '
    'that never started. downstream: the tasks of failed, and all tasks after the selected ones. Returns the names of '
    'the tasks';
GRANT EXECUTE ON FUNCTION mill.restart_run TO mill_operator;

CREATE OR REPLACE FUNCTION mill.rerun_run(run_id bigint, tasks text[] DEFAULT NULL, downstream boolean DEFAULT true)
RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run mill.runs;
    unknown text;
    nodes bigint[];
BEGIN
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = rerun_run.run_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no run %', run_id USING ERRCODE = '22023';
    END IF;
    SELECT n INTO unknown FROM unnest(rerun_run.tasks) AS n
        WHERE NOT EXISTS (SELECT FROM mill.run_tasks t WHERE t.run_id = run.id AND t.name = n) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'run % has no task "%"', run_id, unknown USING ERRCODE = '22023',
            HINT = format('pgmill run show %s --all lists its tasks.', run_id);
    END IF;
    WITH RECURSIVE chosen (node) AS (
        SELECT t.node FROM mill.run_tasks t WHERE t.run_id = run.id
            AND (rerun_run.tasks IS NULL OR t.name = ANY (rerun_run.tasks))
        UNION
        SELECT e.child FROM chosen p JOIN mill.run_edges e ON e.run_id = run.id AND e.parent = p.node WHERE downstream
    )
    SELECT array_agg(c.node) INTO nodes FROM chosen c;
    RETURN QUERY SELECT mill.run_again(run, nodes, 'rerun_run',
        jsonb_build_object('names', to_jsonb(rerun_run.tasks), 'downstream', downstream));
END
$$;
COMMENT ON FUNCTION mill.rerun_run IS
    'Runs tasks of a run again, whatever their outcome was: all tasks, or the given ones and (downstream) all tasks '
    'after them. Returns their names. Raises an error if one of them has not ended';
GRANT EXECUTE ON FUNCTION mill.rerun_run TO mill_operator;

CREATE OR REPLACE FUNCTION mill.retry_run_task(run_id bigint, task text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run mill.runs;
    found_task mill.run_tasks;
    nodes bigint[];
BEGIN
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = retry_run_task.run_id FOR NO KEY UPDATE;
    SELECT t.* INTO found_task FROM mill.run_tasks t WHERE t.run_id = run.id AND t.name = task;
    IF NOT FOUND THEN
        RETURN 'not found';
    ELSIF found_task.state NOT IN ('failed', 'cancelled') THEN
        RETURN found_task.state::text;
    END IF;
    -- All later tasks that did not run because of their parents are evaluated again, even if another
    -- task is the reason.
    WITH RECURSIVE after (node) AS (
        SELECT found_task.node
        UNION
        SELECT c.node FROM after a JOIN mill.run_edges e ON e.run_id = run.id AND e.parent = a.node
            JOIN mill.run_tasks c ON c.run_id = run.id AND c.node = e.child
                AND c.state IN ('upstream_failed', 'skipped')
    )
    SELECT array_agg(a.node) INTO nodes FROM after a;
    PERFORM mill.run_again(run, nodes, 'retry_run_task', jsonb_build_object('task', task));
    RETURN 'retried';
END
$$;
COMMENT ON FUNCTION mill.retry_run_task IS
    'Runs a failed or cancelled task of a run again, and the tasks that did not run because of it. If the '
    'run has ended, it is in progress again. Returns retried, or the state of a task that is in another state, or not '
    'found';
GRANT EXECUTE ON FUNCTION mill.retry_run_task TO mill_operator;

-- schema/34_run_deadlines.sql ---------------------------------------------------------------------

-- Deadlines and timeouts of runs.
--
-- They decide which runs are late, and which are cancelled because they take too long. A schedule or a
-- job declares them, and a run takes them over when it starts.

COMMENT ON COLUMN mill.jobs.expected_duration IS
    'Duration after which a run of the job is slower than expected; null: four times the usual duration, see '
    'mill.slow_runs';
COMMENT ON COLUMN mill.jobs.deadline IS
    'Time after the start of a run, or after the fire that started it, at which the run is late; null: never';
COMMENT ON COLUMN mill.schedules.expected_duration IS 'As in mill.jobs. Overrides the jobs; null: as in the jobs';
COMMENT ON COLUMN mill.schedules.deadline IS 'As in mill.jobs. Overrides the jobs; null: as in the jobs';
COMMENT ON COLUMN mill.jobs.run_timeout IS
    'Time after the start of a run at which the run is cancelled with its running tasks; null: never';
COMMENT ON COLUMN mill.schedules.run_timeout IS 'As in mill.jobs. Overrides the jobs; null: as in the jobs';
COMMENT ON COLUMN mill.runs.timeout_at IS
    'Time at which the run is cancelled if it has not ended, counted from its start or its last restart; null: never';
COMMENT ON COLUMN mill.runs.cancel_reason IS
    'Why the fleet cancelled the run: timed out after …; null: it did not. Only mill.time_out_runs sets it';
COMMENT ON COLUMN mill.job_tasks.expected_duration IS
    'Duration after which the task is slower than expected; null: see mill.slow_tasks';
COMMENT ON COLUMN mill.run_tasks.expected_duration IS 'As in mill.job_tasks';
COMMENT ON COLUMN mill.runs.expected_duration IS
    'Duration after which the run is slower than expected; null: not declared';
COMMENT ON COLUMN mill.runs.late_at IS 'Time at which the run is late if it has not ended; null: never';
COMMENT ON COLUMN mill.runs.late_since IS
    'The deadline that the run has missed, kept after its end; null: the run is not late. Only mill.mark_late sets it';
-- Used by the poll of every worker, and by mill.mark_late_runs.
CREATE INDEX IF NOT EXISTS runs_deadline ON mill.runs (late_at) WHERE state = 'running' AND late_at IS NOT NULL;
-- For the late runs of one schedule.
CREATE INDEX IF NOT EXISTS runs_late ON mill.runs (schedule_id, id) WHERE late_since IS NOT NULL;
-- Used by the poll of every worker, and by mill.time_out_runs.
CREATE INDEX IF NOT EXISTS runs_timeout ON mill.runs (timeout_at)
    WHERE state = 'running' AND timeout_at IS NOT NULL AND cancel_reason IS NULL;
GRANT SELECT (late_at, late_since, timeout_at, cancel_reason) ON mill.runs TO mill_worker;

CREATE OR REPLACE FUNCTION mill.check_durations(document jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong text;
BEGIN
    SELECT k INTO wrong FROM unnest('{expected_duration,deadline,run_timeout}'::text[]) AS k
        WHERE (document->>k)::interval NOT BETWEEN '1 millisecond' AND '365 days' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% must be from 1 millisecond to 365 days', wrong USING ERRCODE = '22023';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_durations IS
    'Raises an error if expected_duration, deadline or run_timeout of a job, a task or a schedule is out of range';

CREATE OR REPLACE FUNCTION mill.declared_durations(jobs text[], schedule mill.schedules, OUT expected_duration interval,
    OUT deadline interval, OUT run_timeout interval)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(schedule.expected_duration, max(j.expected_duration)), coalesce(schedule.deadline, min(j.deadline)),
        coalesce(schedule.run_timeout, min(j.run_timeout))
    FROM mill.jobs j WHERE lower(j.name) = ANY (SELECT lower(n) FROM unnest(jobs) AS n)
$$;
COMMENT ON FUNCTION mill.declared_durations IS
    'Returns the expected duration, the deadline and the timeout of a run of these jobs: those of the schedule, or '
    'else the longest expected duration, the shortest deadline and the shortest timeout of the jobs';
GRANT EXECUTE ON FUNCTION mill.declared_durations TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.mark_late(run_id bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    late mill.runs;
BEGIN
    UPDATE mill.runs r SET late_since = r.late_at
        WHERE r.id = mark_late.run_id AND r.late_since IS NULL
            AND r.late_at < coalesce(r.finished_at, clock_timestamp())
        RETURNING r.* INTO late;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.notify('late', mill.run_subject(late),
        jsonb_build_object('late_since', late.late_since, 'started_at', late.started_at, 'tasks', late.tasks,
            'open', late.open));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.mark_late IS
    'Marks a run as late if it has missed its deadline. Returns true once per run: for the call that marked it. The '
    'only place where a run becomes late; mill.mark_late_runs and mill.finish_run call it';

CREATE OR REPLACE FUNCTION mill.mark_late_runs() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FROM (SELECT r.id FROM mill.runs r
        WHERE r.state = 'running' AND r.late_at <= now() AND r.late_since IS NULL
        ORDER BY r.late_at LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED) AS due WHERE mill.mark_late(due.id)
$$;
COMMENT ON FUNCTION mill.mark_late_runs IS
    'Marks the runs in progress that have missed their deadlines, up to 1000, and returns their number. Leaves out '
    'runs that another session has locked';
GRANT EXECUTE ON FUNCTION mill.mark_late_runs TO mill_worker;

CREATE OR REPLACE FUNCTION mill.time_out_runs() RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run mill.runs;
    timeout interval;
BEGIN
    FOR run IN SELECT r.* FROM mill.runs r
        WHERE r.state = 'running' AND r.timeout_at <= now() AND r.cancel_reason IS NULL
        ORDER BY r.timeout_at LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        timeout := run.timeout_at - coalesce(run.restarted_at, run.started_at);
        UPDATE mill.runs r SET cancelled_at = coalesce(r.cancelled_at, now()), kill = true,
                cancel_reason = format('timed out after %s', timeout)
            WHERE r.id = run.id;
        INSERT INTO mill.run_events (run_id) VALUES (run.id);
        PERFORM mill.record_audit('time_out_runs', 'run ' || run.id, jsonb_build_object('run_timeout', timeout));
        RETURN NEXT run.id;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.time_out_runs IS
    'Cancels the runs in progress whose timeout has passed, up to 1000, as mill.cancel_run with kill does, and returns '
    'their ids for mill.advance_run. Leaves out runs that another session has locked';
GRANT EXECUTE ON FUNCTION mill.time_out_runs TO mill_worker;

CREATE OR REPLACE VIEW mill.late_runs AS
    SELECT r.id, r.jobs, (SELECT s.name FROM mill.schedules s WHERE s.id = r.schedule_id) AS schedule, r.fire_at,
        r.started_at, r.late_at AS late_since, now() - r.late_at AS late_by
    FROM mill.runs r WHERE r.state = 'running' AND r.late_at <= now();
COMMENT ON VIEW mill.late_runs IS 'Runs in progress that have missed their deadline';

-- schema/35_run_notifications.sql -----------------------------------------------------------------

-- Notifications of the end of a run, in its transaction.
--
-- Also the subject of all notifications of a run.

CREATE OR REPLACE FUNCTION mill.recovers(ended mill.runs) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    failed_before boolean;
BEGIN
    IF ended.state <> 'succeeded' THEN
        RETURN false;
    ELSIF ended.restarted_at IS NOT NULL THEN
        -- The audit row of the restart has the state that the run had before.
        SELECT a.detail->>'state' = 'failed' OR a.detail ? 'reason' INTO failed_before FROM mill.audit a
            WHERE a.subject = 'run ' || ended.id AND a.detail ? 'state' ORDER BY a.id DESC LIMIT 1;
    ELSIF ended.schedule_id IS NOT NULL THEN
        SELECT r.state <> 'succeeded' INTO failed_before FROM mill.runs r
            WHERE r.schedule_id = ended.schedule_id AND r.id < ended.id
                AND (r.state IN ('succeeded', 'failed') OR r.state = 'cancelled' AND r.cancel_reason IS NOT NULL)
            ORDER BY r.id DESC LIMIT 1;
    ELSE
        -- No index covers the jobs, so only the newest runs are read, by primary key.
        SELECT r.state <> 'succeeded' INTO failed_before FROM mill.runs r
            WHERE r.id BETWEEN ended.id - 1000 AND ended.id - 1 AND r.schedule_id IS NULL AND r.jobs = ended.jobs
                AND (r.state IN ('succeeded', 'failed') OR r.state = 'cancelled' AND r.cancel_reason IS NOT NULL)
            ORDER BY r.id DESC LIMIT 1;
    END IF;
    RETURN coalesce(failed_before, false);
END
$$;
COMMENT ON FUNCTION mill.recovers IS
    'Returns whether a run succeeded after a failure or a timeout: of itself, before it was restarted; or of the '
    'previous run of its schedule; or without a schedule, of the previous run of the same jobs, among the 1000 newest';

CREATE OR REPLACE FUNCTION mill.run_subject(run mill.runs) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object('run_id', run.id, 'jobs', run.jobs, 'tags', run.tags,
        'schedule', (SELECT s.name FROM mill.schedules s WHERE s.id = run.schedule_id))
$$;
COMMENT ON FUNCTION mill.run_subject IS 'Returns the subject of the notifications of a run, for mill.notify';

CREATE OR REPLACE FUNCTION mill.notify_run(ended mill.runs) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    events mill.notify_event[];
    errors jsonb;
    resolved boolean;
BEGIN
    IF ended.state = 'cancelled' AND ended.cancel_reason IS NULL OR NOT EXISTS (SELECT FROM mill.subscriptions s
        WHERE s.enabled AND s.events && '{run_failed,run_succeeded,run_recovered}')
    THEN
        RETURN;
    END IF;
    resolved := mill.recovers(ended);
    events := CASE WHEN ended.state <> 'succeeded' THEN '{run_failed}'
        WHEN resolved THEN '{run_recovered,run_succeeded}' ELSE '{run_succeeded}' END;
    SELECT jsonb_agg(jsonb_build_object('task', f.name, 'outcome', f.outcome, 'message', left(f.message, 300))
            ORDER BY f.finished_at)
        INTO errors FROM (SELECT t.name, t.outcome, t.message, t.finished_at FROM mill.run_tasks t
            WHERE t.run_id = ended.id AND t.state = 'failed' ORDER BY t.finished_at LIMIT 5) AS f;
    PERFORM mill.notify_first(events, mill.run_subject(ended),
        jsonb_build_object('outcome', ended.state, 'reason', ended.cancel_reason, 'tasks', ended.tasks,
            'succeeded', ended.succeeded, 'failed', ended.failed + ended.ignored,
            'not_completed', ended.cancelled + ended.upstream_failed + ended.skipped,
            'seconds', round(extract(epoch FROM ended.finished_at - coalesce(ended.restarted_at, ended.started_at))
                ::numeric, 3),
            'fire_at', ended.fire_at, 'errors', errors, 'resolved', CASE WHEN resolved THEN true END));
END
$$;
COMMENT ON FUNCTION mill.notify_run IS
    'Inserts the notifications of the end of a run, for mill.finish_run. The document has the number of tasks by '
    'outcome and the first five errors';

-- schema/36_run_status.sql ------------------------------------------------------------------------

-- Status of runs: their tasks by state.

CREATE OR REPLACE VIEW mill.run_status AS
    SELECT r.id, r.jobs, CASE WHEN (SELECT mill.sees_statements()) THEN r.params END AS params, r.state,
        r.started_at, r.started_by, r.finished_at,
        coalesce(r.finished_at, now()) - coalesce(r.restarted_at, r.started_at) AS duration,
        r.cancelled_at, r.cancelled_by, r.restarts, r.dropped,
        (SELECT s.name FROM mill.schedules s WHERE s.id = r.schedule_id) AS schedule, r.fire_at, r.reason,
        coalesce(n.tasks, r.tasks) AS tasks, coalesce(n.waiting, 0) AS waiting, coalesce(n.released, 0) AS released,
        coalesce(n.succeeded, r.succeeded) AS succeeded, coalesce(n.failed, r.failed) AS failed,
        coalesce(n.ignored, r.ignored) AS ignored, coalesce(n.cancelled, r.cancelled) AS cancelled,
        coalesce(n.upstream_failed, r.upstream_failed) AS upstream_failed,
        r.tags, r.metadata, r.restarted_at, coalesce(n.skipped, r.skipped) AS skipped, r.backfill_id,
        r.expected_duration, r.late_at, r.late_since, r.timeout_at, r.cancel_reason,
        coalesce(n.needs_approval, 0) AS needs_approval
    FROM mill.runs r LEFT JOIN LATERAL (
        SELECT count(*) AS tasks, count(*) FILTER (WHERE t.state IN ('waiting', 'ready')) AS waiting,
            count(*) FILTER (WHERE t.state = 'released') AS released,
            count(*) FILTER (WHERE t.state = 'succeeded') AS succeeded,
            count(*) FILTER (WHERE t.state = 'failed' AND NOT t.ignore_failure) AS failed,
            count(*) FILTER (WHERE t.state = 'failed' AND t.ignore_failure) AS ignored,
            count(*) FILTER (WHERE t.state = 'cancelled') AS cancelled,
            count(*) FILTER (WHERE t.state = 'upstream_failed') AS upstream_failed,
            count(*) FILTER (WHERE t.state = 'skipped') AS skipped,
            count(*) FILTER (WHERE t.state = 'ready' AND t.approval) AS needs_approval
        -- The order leaves only the primary key. If the statistics say that there are few tasks, the planner may take
        -- another index, of which it reads all.
        FROM (SELECT x.state, x.ignore_failure, x.approval FROM mill.run_tasks x
            WHERE x.run_id = r.id AND r.state = 'running' ORDER BY x.node) AS t) AS n ON r.state = 'running';
COMMENT ON VIEW mill.run_status IS
    'Runs with their number of tasks by state: waiting (for parents or for approval), needs_approval (of these), '
    'released (in the queue or running), finished';

CREATE OR REPLACE VIEW mill.run_task_status AS
    SELECT r.run_id, r.node, r.name, r.job, r.task_id,
        CASE WHEN r.state = 'released' THEN coalesce(t.state::text, 'released')
            WHEN r.state = 'ready' AND r.approval THEN 'needs_approval'
            WHEN r.state = 'failed' AND r.ignore_failure THEN 'failed, ignored' ELSE r.state::text END AS state,
        r.outcome, coalesce(t.claimed_at, r.started_at) AS started_at, r.finished_at,
        coalesce(r.finished_at, CASE WHEN t.state = 'running' THEN now() END)
            - coalesce(t.claimed_at, r.started_at) AS duration,
        coalesce(t.attempt, r.attempts) AS attempts, r.rows, r.queue, coalesce(r.priority, 'normal') AS priority,
        r.group_name, coalesce(t.session_pid, r.session_pid) AS pid, r.join_mode, r.parents, r.satisfied, r.unsatisfied,
        CASE WHEN (SELECT mill.sees_statements()) THEN r.message END AS message,
        CASE WHEN (SELECT mill.sees_statements()) THEN r.result END AS result,
        CASE WHEN (SELECT mill.sees_statements()) THEN r.params END AS params,
        CASE WHEN (SELECT mill.sees_statements()) THEN r.statement END AS statement,
        (r.options).tags, (r.options).metadata, r.options, r.expected_duration,
        r.approval, r.approval_note, r.approval_since, r.approved, r.decided_by
    -- LIMIT makes each released task a probe. The planner would join all tasks if it expects few.
    FROM mill.run_tasks r LEFT JOIN LATERAL (SELECT x.* FROM mill.tasks x
        WHERE r.state = 'released' AND x.id = r.task_id LIMIT 1) AS t ON true;
COMMENT ON VIEW mill.run_task_status IS
    'Tasks of runs. For a released task, state is the state of the live task in the queue. needs_approval: the task '
    'waits for mill.approve or mill.reject';

-- schema/37_schedule_backfills.sql ----------------------------------------------------------------

-- Backfills: runs of a schedule for instants in the past.
--
-- Only workers compute instants. A worker locks the backfill, computes the next instants of its timing, and
-- starts their runs in the same transaction that moves next_at. So each instant is started once, whichever
-- worker dies. A backfill changes neither the next fire of its schedule nor the state of its last run, and
-- its runs do not count for overlap.

CREATE TABLE IF NOT EXISTS mill.backfills (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id bigint NOT NULL,
    timing text NOT NULL,
    from_at timestamptz NOT NULL,
    to_at timestamptz NOT NULL,
    next_at timestamptz,
    max_running integer NOT NULL DEFAULT 1 CONSTRAINT backfill_max_running CHECK (max_running BETWEEN 1 AND 1000),
    again boolean NOT NULL DEFAULT false,
    params jsonb NOT NULL DEFAULT '{}' CONSTRAINT backfill_params_by_name CHECK (jsonb_typeof(params) = 'object'),
    state mill.backfill_state NOT NULL DEFAULT 'running',
    instants integer,
    fired integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    error text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL DEFAULT session_user,
    finished_at timestamptz,
    CONSTRAINT backfill_period CHECK (from_at <= to_at),
    CONSTRAINT ended_backfill_has_time CHECK ((state IN ('finished', 'cancelled')) = (finished_at IS NOT NULL))
);
COMMENT ON TABLE mill.backfills IS
    'Backfills: runs of schedules for the instants of a period in the past. Kept as long as mill.schedule_log, and as '
    'long as one of their runs';
COMMENT ON COLUMN mill.backfills.timing IS 'Timing of the schedule when the backfill was created';
COMMENT ON COLUMN mill.backfills.from_at IS 'Start of the period, inclusive, like to_at';
COMMENT ON COLUMN mill.backfills.next_at IS
    'Earlier instants have been started or skipped; null: all instants have';
COMMENT ON COLUMN mill.backfills.max_running IS 'Maximum number of runs of the backfill that are in progress';
COMMENT ON COLUMN mill.backfills.again IS
    'Whether an instant for which the schedule has a run already is started again instead of skipped';
COMMENT ON COLUMN mill.backfills.params IS 'Parameters of the runs. They take precedence over those of the schedule';
COMMENT ON COLUMN mill.backfills.instants IS
    'Number of instants in the period; null: no worker has counted them yet';
COMMENT ON COLUMN mill.backfills.fired IS 'Number of instants whose run was started';
COMMENT ON COLUMN mill.backfills.skipped IS 'Number of instants that were skipped, because they had a run already';
COMMENT ON COLUMN mill.backfills.error IS
    'Why the backfill was paused: the error of its next instant; null: an operator paused it, or it is not paused';
CREATE INDEX IF NOT EXISTS backfills_schedule ON mill.backfills (schedule_id);
-- Used by the poll of every worker.
CREATE INDEX IF NOT EXISTS backfills_running ON mill.backfills (id) WHERE state = 'running';
GRANT SELECT (id, state, schedule_id, next_at, max_running) ON mill.backfills TO mill_worker;
GRANT SELECT (schedule_id, backfill_id) ON mill.runs TO mill_worker;

CREATE OR REPLACE VIEW mill.backfill_status AS
    SELECT b.id, s.name AS schedule, b.state, b.timing, b.from_at, b.to_at, b.next_at, b.max_running, b.again,
        CASE WHEN (SELECT mill.sees_statements()) THEN b.params END AS params,
        b.instants, b.fired, b.skipped, n.running, n.succeeded, n.failed, n.cancelled,
        CASE WHEN (SELECT mill.sees_statements()) THEN b.error END AS error, b.created_at, b.created_by, b.finished_at
    FROM mill.backfills b JOIN mill.schedules s ON s.id = b.schedule_id CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE r.state = 'running') AS running,
            count(*) FILTER (WHERE r.state = 'succeeded') AS succeeded,
            count(*) FILTER (WHERE r.state = 'failed') AS failed,
            count(*) FILTER (WHERE r.state = 'cancelled') AS cancelled
        FROM mill.runs r WHERE r.backfill_id = b.id) AS n;
COMMENT ON VIEW mill.backfill_status IS
    'Backfills with the number of their runs by state. Runs that are no longer in history do not count';

-- Operators ---------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.backfill_schedule(name text, from_at timestamptz, to_at timestamptz,
    options jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    s mill.schedules;
    unknown text;
    created bigint;
BEGIN
    options := mill.without_nulls(coalesce(options, '{}'));
    SELECT k INTO unknown FROM jsonb_object_keys(options) AS k
        WHERE k <> ALL (ARRAY['max_running', 'again', 'params']);
    IF FOUND THEN
        RAISE EXCEPTION 'unknown option "%" of a backfill', unknown USING ERRCODE = '22023',
            HINT = 'The options are max_running, again and params.';
    END IF;
    SELECT x.* INTO s FROM mill.schedules x WHERE x.name = backfill_schedule.name;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF s.removed_at IS NOT NULL THEN
        RAISE EXCEPTION 'the declaration of schedule "%" was removed at %', s.name, date_trunc('second', s.removed_at)
            USING ERRCODE = '55000', HINT = 'Declare the schedule again.';
    ELSIF s.mode <> 'scheduled' THEN
        RAISE EXCEPTION 'schedule "%" has no instants: its timing is %', s.name,
            CASE s.mode WHEN 'manual' THEN 'manual' ELSE 'a trigger' END
            USING ERRCODE = '22023', HINT = 'To start one run, use pgmill schedule run-now.';
    ELSIF from_at > to_at THEN
        RAISE EXCEPTION 'the period begins at %, after its end at %', from_at, to_at USING ERRCODE = '22023';
    ELSIF to_at > now() THEN
        RAISE EXCEPTION 'the period ends at %, which is in the future', to_at USING ERRCODE = '22023',
            HINT = 'The schedule itself fires for future instants.';
    ELSIF jsonb_typeof(coalesce(options->'params', '{}')) <> 'object' THEN
        RAISE EXCEPTION 'params must be a JSON object' USING ERRCODE = '22023';
    ELSIF coalesce((options->>'max_running')::integer, 1) NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'max_running must be from 1 to 1000' USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_size('params of the backfill are', options->'params');
    INSERT INTO mill.backfills (schedule_id, timing, from_at, to_at, next_at, max_running, again, params)
        VALUES (s.id, s.timing, from_at, to_at, from_at, coalesce((options->>'max_running')::integer, 1),
            coalesce((options->>'again')::boolean, false), coalesce(options->'params', '{}'))
        RETURNING backfills.id INTO created;
    PERFORM mill.record_audit('backfill_schedule', 'schedule ' || s.name,
        options - 'params' || jsonb_build_object('backfill', created, 'from', from_at, 'to', to_at));
    RETURN created;
END
$$;
COMMENT ON FUNCTION mill.backfill_schedule IS
    'Starts a run for each instant of a schedule from from_at to to_at, both inclusive, and returns the id of the '
    'backfill; null: the schedule does not exist. options: {"max_running": 1, "again": false, "params": {}}. Workers '
    'start the runs, in order, with fire_at set to the instant, and at most max_running at a time';
GRANT EXECUTE ON FUNCTION mill.backfill_schedule TO mill_operator;

CREATE OR REPLACE FUNCTION mill.change_backfill(backfill_id bigint, wanted mill.backfill_state, action text)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    b mill.backfills;
BEGIN
    SELECT x.* INTO b FROM mill.backfills x WHERE x.id = backfill_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF b.finished_at IS NOT NULL AND b.state <> wanted THEN
        RAISE EXCEPTION 'backfill % is %', b.id, b.state USING ERRCODE = '55000',
            HINT = 'Start another one with pgmill schedule backfill.';
    ELSIF b.state <> wanted THEN
        UPDATE mill.backfills x SET state = wanted, error = NULL,
                finished_at = CASE WHEN wanted = 'cancelled' THEN now() END
            WHERE x.id = b.id;
        PERFORM mill.record_audit(action, 'schedule ' || s.name, jsonb_build_object('backfill', b.id))
            FROM mill.schedules s WHERE s.id = b.schedule_id;
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.change_backfill IS
    'For mill.pause_backfill, mill.resume_backfill and mill.cancel_backfill: changes the state of a backfill that has '
    'not ended. Returns false if it does not exist';

CREATE OR REPLACE FUNCTION mill.pause_backfill(backfill_id bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.change_backfill(backfill_id, 'paused', 'pause_backfill')
$$;
COMMENT ON FUNCTION mill.pause_backfill IS
    'Pauses a backfill: it starts no more runs until mill.resume_backfill; runs in progress continue. Returns false if '
    'it does not exist. Raises an error if it has ended';
GRANT EXECUTE ON FUNCTION mill.pause_backfill TO mill_operator;

CREATE OR REPLACE FUNCTION mill.resume_backfill(backfill_id bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.change_backfill(backfill_id, 'running', 'resume_backfill')
$$;
COMMENT ON FUNCTION mill.resume_backfill IS
    'Resumes a paused backfill at its next instant. Returns false if it does not exist. Raises an error if it has '
    'ended';
GRANT EXECUTE ON FUNCTION mill.resume_backfill TO mill_operator;

CREATE OR REPLACE FUNCTION mill.cancel_backfill(backfill_id bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.change_backfill(backfill_id, 'cancelled', 'cancel_backfill')
$$;
COMMENT ON FUNCTION mill.cancel_backfill IS
    'Ends a backfill: it starts no more runs; runs in progress continue. Returns false if it does not exist. Raises an '
    'error if it has finished';
GRANT EXECUTE ON FUNCTION mill.cancel_backfill TO mill_operator;

-- Workers -----------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.lock_backfills()
RETURNS TABLE (id bigint, timing text, from_at timestamptz, to_at timestamptz, next_at timestamptz, counted boolean,
    room integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    b mill.backfills;
    in_progress integer;
BEGIN
    -- Asynchronous commit is safe here, as for a tick: WAL is written in order.
    PERFORM set_config('synchronous_commit', 'off', true);
    FOR b IN SELECT x.* FROM mill.backfills x WHERE x.state = 'running' AND NOT (SELECT mill.fleet_paused())
        ORDER BY x.id FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        SELECT count(*) INTO in_progress FROM mill.runs r
            WHERE r.schedule_id = b.schedule_id AND r.state = 'running' AND r.backfill_id = b.id;
        IF b.next_at IS NULL AND in_progress = 0 THEN
            UPDATE mill.backfills x SET state = 'finished', finished_at = now() WHERE x.id = b.id;
            CONTINUE;
        END IF;
        id := b.id;
        timing := b.timing;
        from_at := b.from_at;
        to_at := b.to_at;
        next_at := b.next_at;
        counted := b.instants IS NOT NULL;
        room := CASE WHEN b.next_at IS NULL THEN 0 ELSE greatest(b.max_running - in_progress, 0) END;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.lock_backfills IS
    'Locks the running backfills for the caller''s transaction, and finishes those whose last run has ended. room: '
    'number of runs that may start now. counted: whether the instants have been counted';
GRANT EXECUTE ON FUNCTION mill.lock_backfills TO mill_worker;

CREATE OR REPLACE FUNCTION mill.advance_backfill(plan jsonb, OUT fired integer, OUT skipped integer, OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    b mill.backfills;
    s mill.schedules;
    room integer := (plan->>'room')::integer;
    problem text := plan->>'error';
    one_fire_at timestamptz;
    started bigint;
BEGIN
    fired := 0;
    skipped := 0;
    more := false;
    SELECT x.* INTO b FROM mill.backfills x WHERE x.id = (plan->>'id')::bigint;
    -- A session that holds the row of the schedule can wait for that of the backfill, so this function does
    -- not wait for the row of the schedule. The next poll tries again.
    SELECT x.* INTO s FROM mill.schedules x WHERE x.id = b.schedule_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF s.removed_at IS NOT NULL THEN
        problem := format('the declaration of schedule "%s" was removed', s.name);
    END IF;
    FOR one_fire_at IN SELECT i.value::timestamptz
        FROM jsonb_array_elements_text(plan->'instants') WITH ORDINALITY AS i(value, place) ORDER BY i.place
    LOOP
        b.next_at := one_fire_at;
        EXIT WHEN problem IS NOT NULL;
        IF NOT b.again AND EXISTS (SELECT FROM mill.runs r WHERE r.schedule_id = s.id AND r.fire_at = one_fire_at) THEN
            skipped := skipped + 1;
        ELSIF room = 0 THEN
            EXIT;
        ELSE
            BEGIN
                SELECT r.run_id INTO started
                    FROM mill.create_run(s.jobs, s.params || b.params, s, one_fire_at, 'backfill', NULL) AS r;
            EXCEPTION WHEN OTHERS THEN
                -- The next step starts the run.
                IF mill.is_temporary(SQLSTATE) THEN
                    RAISE;
                END IF;
                GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT;
                EXIT;
            END;
            UPDATE mill.runs r SET backfill_id = b.id WHERE r.id = started;
            PERFORM mill.log_schedule_event(s.id, 'fired', format('backfill %s', b.id), one_fire_at, 'backfill',
                run_id => started);
            fired := fired + 1;
            room := room - 1;
        END IF;
        b.next_at := NULL;
    END LOOP;
    IF b.next_at IS NULL OR jsonb_array_length(plan->'instants') = 0 THEN
        b.next_at := (plan->>'next_at')::timestamptz;
        -- The caller's next pass also finishes a backfill that has skipped its last instants.
        more := problem IS NULL AND (room > 0 OR b.next_at IS NULL);
    END IF;
    UPDATE mill.backfills x SET next_at = b.next_at, instants = coalesce(x.instants, (plan->>'count')::integer),
            fired = x.fired + advance_backfill.fired, skipped = x.skipped + advance_backfill.skipped,
            error = problem, state = CASE WHEN problem IS NULL THEN x.state ELSE 'paused' END
        WHERE x.id = b.id;
END
$$;
COMMENT ON FUNCTION mill.advance_backfill IS
    'Starts runs of a locked backfill: {"id", "room", "instants" (the next ones, in order), "next_at" (the instant '
    'after these; null: there is none), "count" (of all instants), "error" (of the timing)}. An error pauses the '
    'backfill. more: whether to call it again at once';
GRANT EXECUTE ON FUNCTION mill.advance_backfill TO mill_worker;

-- schema/38_schedule_run_now.sql ------------------------------------------------------------------

-- Runs of schedules that an operator starts.
--
-- For now, or for an instant in the past.

CREATE OR REPLACE FUNCTION mill.run_now(name text, force boolean DEFAULT false, options jsonb DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s mill.schedules;
    unknown text;
    blocker bigint;
    started bigint;
    instant timestamptz;
BEGIN
    options := mill.without_nulls(coalesce(options, '{}'));
    SELECT k INTO unknown FROM jsonb_object_keys(options) AS k WHERE k NOT IN ('params', 'fire_at');
    IF FOUND THEN
        RAISE EXCEPTION 'unknown option "%"', unknown USING ERRCODE = '22023',
            HINT = 'The options are params and fire_at.';
    ELSIF jsonb_typeof(coalesce(options->'params', '{}')) <> 'object' THEN
        RAISE EXCEPTION 'params must be a JSON object' USING ERRCODE = '22023';
    END IF;
    instant := (options->>'fire_at')::timestamptz;
    SELECT x.* INTO s FROM mill.schedules x WHERE x.name = run_now.name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF s.removed_at IS NOT NULL THEN
        RAISE EXCEPTION 'the declaration of schedule "%" was removed at %', s.name, date_trunc('second', s.removed_at)
            USING ERRCODE = '55000', HINT = 'Declare the schedule again.';
    ELSIF instant > now() THEN
        RAISE EXCEPTION 'instant % is in the future', instant USING ERRCODE = '22023',
            HINT = 'A run for a future instant would take the place of the regular fire.';
    END IF;
    blocker := mill.blocking_run(s);
    IF blocker IS NOT NULL AND NOT force THEN
        RAISE EXCEPTION 'run % of schedule "%" is still running', blocker, s.name USING ERRCODE = '55000',
            HINT = 'Wait for it, cancel it (pgmill run cancel), or start another run concurrently with --force.';
    END IF;
    SELECT max(r.id) INTO blocker FROM mill.runs r WHERE r.schedule_id = s.id AND r.fire_at = instant;
    IF blocker IS NOT NULL AND NOT force THEN
        RAISE EXCEPTION 'schedule "%" has a run for % already: run %', s.name, instant, blocker
            USING ERRCODE = '55000', HINT = 'Restart that run (pgmill run rerun), or start another one with --force.';
    END IF;
    SELECT r.run_id INTO started FROM mill.create_run(s.jobs, s.params || coalesce(options->'params', '{}'), s,
        coalesce(instant, clock_timestamp()), 'manual', NULL) AS r;
    PERFORM mill.log_schedule_event(s.id, 'fired', 'by ' || session_user, r.fire_at, r.reason, run_id => r.id)
        FROM mill.runs r WHERE r.id = started;
    PERFORM mill.record_audit('run_now', 'schedule ' || s.name,
        jsonb_build_object('run', started, 'force', force) || options - 'params');
    RETURN started;
END
$$;
COMMENT ON FUNCTION mill.run_now IS
    'Starts a run of a schedule immediately, without regard to its timing and without changing it. options: {"params": '
    '{"day": "2026-12-01"}, "fire_at": "2026-12-01 03:00+01"}: parameters in addition to those of the schedule, and an '
    'instant that is not in the future; without it, the run gets the current time as fire_at. Returns the id of the '
    'run; null: the schedule does not exist. Raises an error if a run is in progress that must not overlap, or if the '
    'instant has a run already, unless force is set';
GRANT EXECUTE ON FUNCTION mill.run_now TO mill_operator;

-- schema/39_schedule_ticks.sql --------------------------------------------------------------------

-- Ticks of schedules: whether a due schedule fires, its runs and its log.
--
-- Status: 41_schedule_views.sql.
--
-- Workers parse timings, compute fire times and measure triggers. The functions of this file decide
-- whether to fire, under the lock of the schedule's row. The unique index runs_fired_once ensures
-- that a schedule fires once per fire time.

-- Decision and fire -------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.blocking_run(schedule mill.schedules) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.id FROM mill.runs r
    WHERE r.schedule_id = schedule.id AND r.state = 'running' AND r.backfill_id IS NULL AND schedule.overlap <> 'allow'
    ORDER BY r.id LIMIT 1
$$;
COMMENT ON FUNCTION mill.blocking_run IS
    'Returns the run in progress that prevents another run of the schedule; null: none. Runs of backfills do not count';
GRANT EXECUTE ON FUNCTION mill.blocking_run TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.evaluate_trigger(trigger jsonb, pending bigint, oldest_age interval,
    last_fire_at timestamptz, OUT fire boolean, OUT reason text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    least_rows bigint := (trigger->>'rows')::bigint;
    idle interval := make_interval(secs => (trigger->>'idle_secs')::double precision);
    debounce interval := make_interval(secs => (trigger->>'debounce_secs')::double precision);
    age interval := date_trunc('second', oldest_age);
BEGIN
    fire := true;
    IF pending >= least_rows THEN
        reason := format('row threshold: pending rows %s >= %s', pending, least_rows);
    ELSIF pending > 0 AND oldest_age >= idle THEN
        reason := format('idle: age of the oldest row %s >= %s, pending rows %s', age, idle, pending);
    ELSIF pending > 0 AND (trigger->>'new_rows')::boolean AND coalesce(now() - last_fire_at >= debounce, true) THEN
        reason := format('new rows: pending rows %s, %s', pending,
            CASE WHEN last_fire_at IS NULL THEN 'no previous fire'
            ELSE format('last fire %s ago >= %s', date_trunc('second', now() - last_fire_at), debounce) END);
    ELSE
        fire := false;
        reason := 'no trigger condition is met: ' || array_to_string(ARRAY[
            format('pending rows %s', pending) || coalesce(' < ' || least_rows, ''),
            CASE WHEN pending > 0 AND idle IS NOT NULL
                THEN format('age of the oldest row %s < %s', coalesce(age::text, '(unknown)'), idle) END,
            CASE WHEN pending > 0 AND (trigger->>'new_rows')::boolean
                THEN format('last fire %s ago < %s', date_trunc('second', now() - last_fire_at), debounce) END], ', ');
    END IF;
END
$$;
COMMENT ON FUNCTION mill.evaluate_trigger IS
    'For mill.should_fire: evaluates the conditions of a trigger in the order row threshold, idle, new rows. Returns '
    'the first condition that is met, or why none is met';
GRANT EXECUTE ON FUNCTION mill.evaluate_trigger TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.failed_runs(schedule mill.schedules) RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(min(r.n) FILTER (WHERE r.state <> 'failed') - 1, count(*))::integer
    FROM (SELECT x.state, row_number() OVER (ORDER BY x.id DESC) AS n FROM mill.runs x
        WHERE x.schedule_id = schedule.id ORDER BY x.id DESC LIMIT 12) AS r
$$;
COMMENT ON FUNCTION mill.failed_runs IS 'Returns the number of runs of the schedule that failed in a row, at most 12';
GRANT EXECUTE ON FUNCTION mill.failed_runs TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.should_fire(schedule mill.schedules, pending bigint, oldest_age interval,
    OUT fire boolean, OUT reason text, OUT blocked_by bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    failed integer;
    paused_until timestamptz;
BEGIN
    fire := false;
    reason := CASE WHEN schedule.removed_at IS NOT NULL
            THEN format('its declaration was removed at %s', date_trunc('second', schedule.removed_at))
        WHEN NOT schedule.enabled AND schedule.timing ILIKE 'once(%' AND schedule.last_fire_at IS NOT NULL
            THEN 'it has fired and does not fire again'
        WHEN NOT schedule.enabled AND schedule.timing ILIKE 'once(%' AND EXISTS (SELECT FROM mill.schedule_log l
            WHERE l.schedule_id = schedule.id AND l.event = 'missed')
            THEN 'its time has passed without a fire, because no worker ticked in time'
        WHEN schedule.timing_finished_at IS NOT NULL THEN 'it has no more fires'
        WHEN NOT schedule.enabled THEN 'it is disabled'
        WHEN schedule.mode = 'manual' THEN 'it fires only when started manually'
        WHEN schedule.mode = 'scheduled' AND schedule.next_fire_at IS NULL AND schedule.queued_fire_at IS NOT NULL
            THEN format('its last fire, of %s, waits for a run of the schedule to finish', schedule.queued_fire_at)
        WHEN schedule.next_fire_at IS NULL AND schedule.trigger IS NULL AND schedule.next_tick_at IS NOT NULL
            THEN 'no worker has computed its next fire since it was changed'
        WHEN schedule.mode = 'triggered' AND schedule.trigger IS NULL
            OR schedule.mode = 'scheduled' AND schedule.next_fire_at IS NULL
            THEN coalesce(schedule.error, 'it has no more fires')
        WHEN schedule.mode = 'scheduled' AND schedule.next_fire_at > now()
            THEN format('the next fire is due at %s, in %s', schedule.next_fire_at,
                date_trunc('second', schedule.next_fire_at - now())) END;
    IF reason IS NOT NULL THEN
        RETURN;
    ELSIF schedule.mode = 'scheduled' THEN
        fire := true;
        reason := 'schedule';
    ELSE
        SELECT j.fire, j.reason INTO fire, reason
            FROM mill.evaluate_trigger(schedule.trigger, pending, oldest_age, schedule.last_fire_at) AS j;
    END IF;
    IF fire THEN
        blocked_by := mill.blocking_run(schedule);
        fire := blocked_by IS NULL;
    END IF;
    -- The rows that met the condition are still there after a run that failed. Without a growing pause,
    -- each look would start the next run.
    IF fire AND schedule.mode = 'triggered' AND schedule.last_state = 'failed' THEN
        failed := mill.failed_runs(schedule);
        paused_until := schedule.last_finished_at + least(interval '1 hour', interval '10 s' * 2 ^ (failed - 1));
        IF failed > 0 AND paused_until > now() THEN
            fire := false;
            reason := format('%s; its last %s failed, so it waits until %s', reason,
                CASE failed WHEN 1 THEN 'run' ELSE failed || ' runs' END, date_trunc('second', paused_until));
        END IF;
    END IF;
    IF blocked_by IS NOT NULL THEN
        reason := format('%s; run %s has been running since %s', reason, blocked_by,
            (SELECT date_trunc('second', r.started_at)
            FROM mill.runs r WHERE r.id = blocked_by));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.should_fire IS
    'Returns whether a schedule should fire now, and the reason. Used by ticks and by mill.schedule_test. pending, '
    'oldest_age: result of mill.probe_query';
GRANT EXECUTE ON FUNCTION mill.should_fire TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.log_schedule_event(schedule_id bigint, event mill.schedule_event,
    message text DEFAULT NULL, fire_at timestamptz DEFAULT NULL, reason text DEFAULT NULL, rows bigint DEFAULT NULL,
    count bigint DEFAULT NULL, run_id bigint DEFAULT NULL, outcome mill.run_state DEFAULT NULL,
    duration interval DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    problem text;
BEGIN
    INSERT INTO mill.schedule_log (schedule_id, event, message, fire_at, reason, rows, count, run_id, outcome, duration)
        VALUES (log_schedule_event.schedule_id, log_schedule_event.event, log_schedule_event.message,
            log_schedule_event.fire_at, log_schedule_event.reason, log_schedule_event.rows, log_schedule_event.count,
            log_schedule_event.run_id, log_schedule_event.outcome, log_schedule_event.duration);
EXCEPTION WHEN OTHERS THEN
    -- The caller fires schedules, or ends a run, or reclaims a task: none of these may depend on the log.
    GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT;
    RAISE WARNING 'cannot log event % of schedule %: %', event, schedule_id, problem;
END
$$;
COMMENT ON FUNCTION mill.log_schedule_event IS
    'Adds a row to mill.schedule_log. If that fails, raises a warning instead of an error';

CREATE OR REPLACE FUNCTION mill.is_temporary(sqlstate text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT left(sqlstate, 2) IN ('40', '53') OR sqlstate = '55P03'
$$;
COMMENT ON FUNCTION mill.is_temporary IS
    'Returns whether the same statement may succeed later: a deadlock, a lack of resources, or a lock that was not '
    'available in time prevented it';

CREATE OR REPLACE FUNCTION mill.fire(schedule mill.schedules, fire_at timestamptz, reason text,
    pending bigint DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    existing mill.runs;
    fired bigint;
    problem text;
    broken text;
BEGIN
    -- The row of the schedule is locked, so no other session fires it concurrently. Relying on the unique
    -- index instead would deadlock: the insert would wait for the session that finishes the existing run,
    -- and that session waits for the row of the schedule.
    SELECT r.* INTO existing FROM mill.runs r WHERE r.schedule_id = schedule.id AND r.fire_at = fire.fire_at
        ORDER BY r.reason IN ('manual', 'backfill'), r.id LIMIT 1;
    IF existing.id IS NOT NULL THEN
        -- Of a regular run, the log has the fire. Any other run takes the place of this fire.
        IF existing.reason IN ('manual', 'backfill') THEN
            PERFORM mill.log_schedule_event(schedule.id, 'skipped', format('run %s was started for this instant (%s)',
                existing.id, existing.reason), fire_at, reason, pending, run_id => existing.id);
        END IF;
        RETURN NULL;
    END IF;
    BEGIN
        SELECT r.run_id INTO fired
            FROM mill.create_run(schedule.jobs, schedule.params, schedule, fire_at, reason, NULL) AS r;
    EXCEPTION WHEN OTHERS THEN
        -- The schedule stays due, and another tick fires it.
        IF mill.is_temporary(SQLSTATE) THEN
            RAISE;
        END IF;
        -- The error must not abort the tick, which processes other schedules as well. This schedule
        -- continues with its next fire.
        GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, broken = CONSTRAINT_NAME;
        -- While the condition of a trigger stays met, the same error is logged once.
        IF broken <> 'runs_fired_once'
            AND (schedule.mode <> 'triggered' OR problem IS DISTINCT FROM schedule.error)
        THEN
            PERFORM mill.log_schedule_event(schedule.id, 'error', problem, fire_at, reason, pending);
        END IF;
        UPDATE mill.schedules s SET error = problem WHERE s.id = schedule.id AND broken <> 'runs_fired_once';
        RETURN NULL;
    END;
    PERFORM mill.log_schedule_event(schedule.id, 'fired', NULL, fire_at, reason, pending, run_id => fired);
    UPDATE mill.schedules s SET last_fire_at = greatest(s.last_fire_at, fire_at), error = NULL
        WHERE s.id = schedule.id;
    RETURN fired;
END
$$;
COMMENT ON FUNCTION mill.fire IS
    'Starts a run of a schedule whose row is locked. Returns null if a run for this fire time exists or the run could '
    'not be started. If the existing run was started manually or by a backfill, logs the fire as skipped. Why it could '
    'not be started is in schedules.error and in mill.schedule_log. Raises an error if the run may be started later';

CREATE OR REPLACE FUNCTION mill.fire_or_skip(schedule mill.schedules, fire_at timestamptz, pending bigint,
    oldest_age interval, later boolean, OUT fired integer, OUT skipped integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    decision record;
BEGIN
    fired := 0;
    skipped := 0;
    SELECT d.* INTO decision FROM mill.should_fire(schedule, pending, oldest_age) AS d;
    IF decision.fire THEN
        fired := (mill.fire(schedule, fire_at, decision.reason, pending) IS NOT NULL)::integer;
    ELSIF decision.blocked_by IS NULL THEN
        RETURN;
    ELSIF schedule.mode = 'scheduled'
        AND (later OR schedule.overlap = 'queue' AND schedule.queued_fire_at IS NULL)
    THEN
        UPDATE mill.schedules s SET queued_fire_at = coalesce(s.queued_fire_at, fire_at),
                queued_later = CASE WHEN s.queued_fire_at IS NULL THEN s.queued_later
                    ELSE s.queued_later || fire_at END
            WHERE s.id = schedule.id;
    -- While the condition of a trigger stays met and a run is in progress, only the first skip is
    -- logged.
    ELSIF schedule.mode = 'scheduled' OR NOT EXISTS (SELECT FROM mill.schedule_log l
        WHERE l.schedule_id = schedule.id AND l.event = 'skipped' AND l.run_id = decision.blocked_by
            AND l.id > coalesce((SELECT max(f.id) FROM mill.schedule_log f
                WHERE f.schedule_id = schedule.id AND f.event = 'fired'), 0))
    THEN
        PERFORM mill.log_schedule_event(schedule.id, 'skipped', split_part(decision.reason, '; ', 2), fire_at,
            split_part(decision.reason, '; ', 1), pending, run_id => decision.blocked_by);
        skipped := 1;
    END IF;
END
$$;
COMMENT ON FUNCTION mill.fire_or_skip IS
    'Fires or skips as mill.should_fire decides, and logs the decision, as part of a tick. later: the fire waits for '
    'the run that prevents it, whatever the overlap policy is';

-- Ticks -------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.timing_mode(timing text) RETURNS mill.fire_mode
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE lower(btrim(split_part(timing, '(', 1))) WHEN 'manual' THEN 'manual'::mill.fire_mode
        WHEN 'trigger' THEN 'triggered'::mill.fire_mode ELSE 'scheduled'::mill.fire_mode END
$$;
COMMENT ON FUNCTION mill.timing_mode IS 'Returns the mode of a timing, as the column schedules.mode has it';

CREATE OR REPLACE FUNCTION mill.lock_due_schedules(max_count integer)
RETURNS TABLE (id bigint, name text, version integer, timing text, mode mill.fire_mode, next_fire_at timestamptz,
    planned_from timestamptz, now timestamptz, catch_up integer, max_lateness double precision,
    measure text, timeout double precision)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    s mill.schedules;
BEGIN
    -- Asynchronous commit is safe here: WAL is written in order, so if a run survives a crash, every
    -- earlier change of its schedule does too.
    PERFORM set_config('synchronous_commit', 'off', true);
    -- A schedule that waits for a lock must not delay the others.
    PERFORM set_config('lock_timeout', '500ms', true);
    -- While the fleet is paused, schedules become due and wait, as if no worker were running.
    FOR s IN SELECT x.* FROM mill.schedules x WHERE x.next_tick_at <= now() AND NOT (SELECT mill.fleet_paused())
        ORDER BY x.next_tick_at LIMIT max_count FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        id := s.id;
        name := s.name;
        version := s.version;
        timing := s.timing;
        mode := s.mode;
        next_fire_at := s.next_fire_at;
        planned_from := s.planned_from;
        -- A delay caused by jitter does not count as lateness.
        now := now() - least(greatest(s.next_tick_at - s.next_fire_at, '0'), coalesce(s.jitter, s.declared_jitter));
        catch_up := s.catch_up;
        max_lateness := extract(epoch FROM s.max_lateness);
        measure := mill.probe_query(s.trigger);
        timeout := (s.trigger->>'timeout_secs')::double precision;
        IF s.new_timing IS NOT NULL AND s.new_timing_error IS NULL THEN
            -- Returned like the timing of a new schedule. mill.tick applies the result of the parser.
            timing := s.new_timing;
            mode := mill.timing_mode(s.new_timing);
            next_fire_at := NULL;
            planned_from := s.new_timing_at;
            now := now();
            measure := NULL;
        ELSIF s.trigger IS NOT NULL THEN
            -- The caller runs the probe of the trigger. The next tick of this schedule is one probe interval
            -- from now.
            UPDATE mill.schedules x
                SET next_tick_at = now() + make_interval(secs => (s.trigger->>'every_secs')::double precision)
                WHERE x.id = s.id;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.lock_due_schedules IS
    'Locks due schedules for the caller''s transaction, up to max_count. planned_from: if next_fire_at is null, time '
    'from which to search for the next fire. now: current time minus the delay caused by jitter. measure: query that '
    'the caller must run for a parsed trigger, within timeout seconds. timing: a new timing that no worker has checked '
    'precedes the timing in force. Returns nothing while the fleet is paused';
GRANT EXECUTE ON FUNCTION mill.lock_due_schedules TO mill_worker;

CREATE OR REPLACE FUNCTION mill.report_missed(schedule mill.schedules, missed bigint, missed_from timestamptz,
    missed_to timestamptz, uncounted boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.log_schedule_event(schedule.id, 'missed', format('%s at %s%s%s', missed, missed_from,
        CASE WHEN missed > 1 THEN format(' to %s', missed_to) ELSE '' END,
        CASE WHEN uncounted THEN ', and more, not counted, until one hour ago' ELSE '' END), missed_to,
        count => missed);
    PERFORM mill.notify('schedule_missed', jsonb_build_object('schedule', schedule.name, 'jobs', schedule.jobs,
        'tags', schedule.tags), jsonb_build_object('count', missed, 'missed_from', missed_from,
        'missed_to', missed_to));
END
$$;
COMMENT ON FUNCTION mill.report_missed IS 'For mill.tick: logs missed fires, and notifies of them';

CREATE OR REPLACE FUNCTION mill.fire_queued(schedule_id bigint, failure text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s mill.schedules;
    fired integer := 0;
BEGIN
    LOOP
        SELECT x.* INTO s FROM mill.schedules x WHERE x.id = fire_queued.schedule_id;
        EXIT WHEN s.queued_fire_at IS NULL OR failure IS NULL AND mill.blocking_run(s) IS NOT NULL;
        IF failure IS NULL THEN
            fired := fired + (mill.fire(s, s.queued_fire_at, 'schedule, queued') IS NOT NULL)::integer;
        END IF;
        UPDATE mill.schedules x SET queued_fire_at = x.queued_later[1], queued_later = nullif(x.queued_later[2:], '{}')
            WHERE x.id = s.id;
    END LOOP;
    RETURN fired;
END
$$;
COMMENT ON FUNCTION mill.fire_queued IS
    'For mill.tick: starts the fires of a schedule that wait, until a run of the schedule prevents the next one. '
    'failure: the error of an earlier tick, after which they are dropped; null: none. Returns the number of runs';

CREATE OR REPLACE FUNCTION mill.set_next_fire(schedule_id bigint, next_fire_at timestamptz, trigger jsonb, error text,
    ends boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    UPDATE mill.schedules x SET next_fire_at = set_next_fire.next_fire_at, trigger = set_next_fire.trigger,
            -- After the last fire, a tick may follow for a fire that waits. It must not compute the last fire again.
            planned_from = CASE WHEN next_fire_at IS NULL AND error IS NULL THEN now() ELSE x.planned_from END,
            error = coalesce(set_next_fire.error, x.error),
            enabled = x.enabled AND NOT (ends AND x.queued_fire_at IS NULL),
            timing_finished_at = CASE WHEN x.enabled AND ends AND x.queued_fire_at IS NULL THEN now()
                ELSE x.timing_finished_at END,
            next_tick_at = CASE WHEN trigger IS NOT NULL THEN now()
                -- A jitter above the interval of the timing must not plan a tick in the past, which would count as
                -- missed.
                WHEN next_fire_at IS NOT NULL
                THEN greatest(next_fire_at + random() * coalesce(x.jitter, x.declared_jitter), now()) END
        WHERE x.id = set_next_fire.schedule_id;
END
$$;
COMMENT ON FUNCTION mill.set_next_fire IS
    'For mill.tick: sets the next fire and the next tick of a schedule. trigger: the parsed trigger. error: that of '
    'the timing. ends: whether the timing has no further fire, so that the schedule is disabled once no fire waits';

CREATE OR REPLACE FUNCTION mill.tick(plans jsonb) RETURNS TABLE (schedule_id bigint, fired integer, skipped integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    plan record;
    s mill.schedules;
    one_fire_at timestamptz;
    waited integer;
    step record;
    ends boolean;
BEGIN
    FOR plan IN SELECT p.* FROM jsonb_to_recordset(plans) AS p(id bigint, fires timestamptz[], next_fire_at timestamptz,
        missed bigint, missed_from timestamptz, missed_to timestamptz, uncounted boolean, failure text,
        postponed text, error text, trigger jsonb)
    LOOP
        schedule_id := plan.id;
        fired := 0;
        skipped := 0;
        IF plan.postponed IS NOT NULL THEN
            -- The schedule stays due, and lets others go first.
            UPDATE mill.schedules x SET error = plan.postponed, next_tick_at = now() + interval '2 s'
                WHERE x.id = plan.id;
            RETURN NEXT;
            CONTINUE;
        END IF;
        SELECT x.* INTO s FROM mill.schedules x WHERE x.id = plan.id;
        IF s.new_timing IS NOT NULL AND s.new_timing_error IS NULL THEN
            IF mill.timing_mode(s.new_timing) = 'scheduled' AND plan.missed = 0 AND plan.failure IS NULL
                AND num_nonnulls(plan.error, plan.next_fire_at) = 0 AND coalesce(cardinality(plan.fires), 0) = 0
            THEN
                plan.error := 'it has no time in the future';
            END IF;
            IF plan.error IS NOT NULL THEN
                PERFORM mill.log_schedule_event(plan.id, 'error',
                    format('new timing %s: %s', s.new_timing, plan.error));
                UPDATE mill.schedules x SET new_timing_error = plan.error, next_tick_at = now() WHERE x.id = plan.id;
                RETURN NEXT;
                CONTINUE;
            END IF;
            PERFORM mill.accept_timing(s.name);
        END IF;
        PERFORM mill.report_missed(s, plan.missed, plan.missed_from, plan.missed_to, plan.uncounted)
            WHERE plan.missed > 0;
        PERFORM mill.log_schedule_event(plan.id, 'error', coalesce(plan.error, plan.failure))
            WHERE num_nonnulls(plan.error, plan.failure) > 0;
        SELECT x.* INTO s FROM mill.schedules x WHERE x.id = plan.id;
        IF s.queued_fire_at IS NOT NULL THEN
            -- Fires that wait start before later ones.
            fired := mill.fire_queued(plan.id, plan.failure);
            SELECT x.* INTO s FROM mill.schedules x WHERE x.id = plan.id;
        END IF;
        waited := fired;
        FOREACH one_fire_at IN ARRAY coalesce(plan.fires, '{}') LOOP
            SELECT x.* INTO s FROM mill.schedules x WHERE x.id = plan.id;
            s.next_fire_at := one_fire_at;
            -- The second of several fires that are caught up waits for the run of the first.
            SELECT f.* INTO step FROM mill.fire_or_skip(s, one_fire_at, NULL, NULL, fired > waited) AS f;
            fired := fired + step.fired;
            skipped := skipped + step.skipped;
        END LOOP;
        -- A schedule that has no further fire, such as once(…), is disabled when its last fire no longer waits.
        ends := s.mode = 'scheduled' AND num_nonnulls(plan.error, plan.next_fire_at) = 0;
        IF ends AND num_nonnulls(s.queued_fire_at, s.last_fire_at) = 0 AND coalesce(cardinality(plan.fires), 0) = 0
            AND coalesce(plan.missed, 0) = 0
        THEN
            plan.error := 'its timing has no time in the future';
            PERFORM mill.log_schedule_event(plan.id, 'error', plan.error);
        END IF;
        PERFORM mill.set_next_fire(plan.id, plan.next_fire_at, plan.trigger, plan.error, ends);
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.tick IS
    'Applies the results of a tick to locked schedules: [{"id", "fires", "next_fire_at", "missed", "missed_from", '
    '"missed_to", "uncounted", "failure" (of an earlier tick), "postponed" (the error that prevents a fire for now), '
    '"error" (of the timing), "trigger"}]. Returns the '
    'number of fires and of skipped fires per schedule. If the plan is that of a new timing, accepts or rejects the '
    'new timing first; after a rejection, the schedule is due at once, with the timing in force';
GRANT EXECUTE ON FUNCTION mill.tick TO mill_worker;

CREATE OR REPLACE FUNCTION mill.probe_query(trigger jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN trigger ? 'probe' THEN format($query$SELECT (m.found)[1]::numeric::bigint,
    extract(epoch FROM now() - (m.found)[2]::timestamptz)::float8
FROM (SELECT ARRAY(SELECT e.value FROM pg_catalog.json_each_text(pg_catalog.row_to_json(probe)) AS e) AS found FROM (
%s
) AS probe LIMIT 2) AS m$query$, trigger->>'probe')
    ELSE format($query$SELECT count(*), %s FROM %s WHERE (
%s
)$query$,
    CASE WHEN trigger ? 'age' THEN format('extract(epoch FROM now() - min(%I)::timestamptz)::float8', trigger->>'age')
            ELSE 'NULL::float8' END,
        (SELECT string_agg(format('%I', p.value), '.' ORDER BY p.place)
            FROM jsonb_array_elements_text(trigger->'table') WITH ORDINALITY AS p(value, place)),
        coalesce(trigger->>'filter', 'true')) END
$$;
COMMENT ON FUNCTION mill.probe_query IS
    'Returns a query for the number of pending rows and the age of the oldest one in seconds. Names are quoted; '
    'filter and probe are used as declared. Run it as one statement in a read-only transaction, as a login that may '
    'read the table';
GRANT EXECUTE ON FUNCTION mill.probe_query TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.tick_trigger(schedule_id bigint, version integer, taken_at timestamptz, pending bigint,
    oldest_seconds double precision, error text) RETURNS TABLE (fired integer, skipped integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    s mill.schedules;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT x.* INTO s FROM mill.schedules x WHERE x.id = tick_trigger.schedule_id FOR NO KEY UPDATE;
    -- Ignores the measurement if the schedule was changed or removed since, or has already been fired by
    -- a later tick, or if a run has ended since, which may have processed the rows, or the fleet was paused.
    IF s.version IS DISTINCT FROM tick_trigger.version OR s.trigger IS NULL OR NOT mill.is_active(s)
        OR greatest(s.last_fire_at, s.last_finished_at) >= taken_at OR mill.fleet_paused()
    THEN
        RETURN QUERY SELECT 0, 0;
        RETURN;
    END IF;
    UPDATE mill.schedules x SET trigger_checked_at = now(), trigger_result = coalesce(tick_trigger.error,
            (SELECT d.reason FROM mill.should_fire(s, pending, make_interval(secs => oldest_seconds)) AS d))
        WHERE x.id = s.id;
    -- If the fire fails, mill.fire sets the error again.
    IF tick_trigger.error IS DISTINCT FROM s.error THEN
        UPDATE mill.schedules x SET error = tick_trigger.error WHERE x.id = s.id;
        -- A repeated error is not logged again.
        IF tick_trigger.error IS NOT NULL THEN
            PERFORM mill.log_schedule_event(s.id, 'error', tick_trigger.error);
        END IF;
    END IF;
    IF tick_trigger.error IS NOT NULL THEN
        RETURN QUERY SELECT 0, 0;
        RETURN;
    END IF;
    RETURN QUERY SELECT f.fired, f.skipped
        FROM mill.fire_or_skip(s, now(), pending, make_interval(secs => oldest_seconds), false) AS f;
END
$$;
COMMENT ON FUNCTION mill.tick_trigger IS
    'Records the value that the probe of a trigger measured, or the error of the probe, and fires the schedule if a '
    'condition of the trigger is met. taken_at: time at which mill.lock_due_schedules returned the schedule';
GRANT EXECUTE ON FUNCTION mill.tick_trigger TO mill_worker;

-- Log ---------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.log_completed(ended mill.runs) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.log_schedule_event(ended.schedule_id, 'completed', CASE WHEN ended.cancel_reason IS NOT NULL
        THEN ended.cancel_reason WHEN ended.failed > 0 THEN (SELECT t.name || ': ' || t.message FROM mill.run_tasks t
            WHERE t.run_id = ended.id AND t.state = 'failed' AND NOT t.ignore_failure ORDER BY t.node LIMIT 1) END,
        ended.fire_at, ended.reason, run_id => ended.id, outcome => ended.state,
        duration => ended.finished_at - coalesce(ended.restarted_at, ended.started_at));
    -- The state of the last run tells whether the schedule itself works.
    IF ended.backfill_id IS NOT NULL THEN
        RETURN;
    END IF;
    UPDATE mill.schedules s SET last_finished_at = ended.finished_at, last_state = ended.state,
            last_success_at = CASE WHEN ended.state = 'succeeded' THEN ended.finished_at ELSE s.last_success_at END,
            next_tick_at = CASE WHEN s.queued_fire_at IS NOT NULL THEN now() ELSE s.next_tick_at END
        WHERE s.id = ended.schedule_id;
END
$$;
COMMENT ON FUNCTION mill.log_completed IS 'Logs the end of a run that a schedule fired, for mill.finish_run';

CREATE OR REPLACE FUNCTION mill.log_reclaimed(task mill.tasks) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.log_schedule_event(r.schedule_id, 'reclaimed', format('the worker of task %s died; it had claimed the '
            'task at %s', task.name, date_trunc('second', task.claimed_at)), r.fire_at, run_id => r.id)
        FROM mill.runs r WHERE r.id = task.run_id AND r.schedule_id IS NOT NULL
$$;
COMMENT ON FUNCTION mill.log_reclaimed IS
    'Logs that the worker of a task died, if a schedule fired the run of the task, for mill.fail';
GRANT EXECUTE ON FUNCTION mill.log_reclaimed TO mill_worker;

-- schema/40_idempotency.sql -----------------------------------------------------------------------

-- Idempotency keys of requests.
--
-- A program that repeats a request after a lost answer sends the same key, and gets the stored answer
-- instead of a second effect. The key commits together with the effects of the request. For keys of
-- tasks, which are unique among live tasks only, see mill.dedup_keys.

CREATE TABLE IF NOT EXISTS mill.idempotency_keys (
    login text NOT NULL DEFAULT session_user,
    caller text NOT NULL,
    key text NOT NULL CONSTRAINT idempotency_key_length CHECK (octet_length(key) BETWEEN 1 AND 255),
    created_at timestamptz NOT NULL DEFAULT now(),
    request text NOT NULL,
    answer jsonb,
    PRIMARY KEY (login, caller, key)
);
COMMENT ON TABLE mill.idempotency_keys IS
    'Requests with an idempotency key, and their answers. Workers delete rows that are older than a day';
COMMENT ON COLUMN mill.idempotency_keys.caller IS
    'User on whose behalf the program sent the request; empty if there is none';
COMMENT ON COLUMN mill.idempotency_keys.request IS 'SHA-256 of the request';
COMMENT ON COLUMN mill.idempotency_keys.answer IS
    'Answer to the request; null only within the transaction of the request';
-- For mill.prune_idempotency_keys.
CREATE INDEX IF NOT EXISTS idempotency_keys_age ON mill.idempotency_keys (created_at);

CREATE OR REPLACE FUNCTION mill.begin_request(caller text, key text, request text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    hash CONSTANT text := encode(sha256(convert_to(request, 'UTF8')), 'hex');
    earlier mill.idempotency_keys;
BEGIN
    -- Waits for a concurrent request with the same key, and then finds its row.
    INSERT INTO mill.idempotency_keys (caller, key, request) VALUES (caller, key, hash) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    SELECT k.* INTO earlier FROM mill.idempotency_keys k
        WHERE k.login = session_user AND k.caller = begin_request.caller AND k.key = begin_request.key;
    IF earlier.request IS DISTINCT FROM hash THEN
        RAISE EXCEPTION 'the idempotency key "%" belongs to another request', key USING ERRCODE = '22023',
            HINT = 'Use a new key for each request, and the same key only to repeat a request.';
    END IF;
    RETURN earlier.answer;
END
$$;
COMMENT ON FUNCTION mill.begin_request IS
    'Registers a request under an idempotency key; null. If the same request was answered before, returns its answer. '
    'Raises an error if the key belongs to another request. The key is valid for a day, and for this login and caller';
GRANT EXECUTE ON FUNCTION mill.begin_request TO mill_producer, mill_operator;

CREATE OR REPLACE FUNCTION mill.finish_request(caller text, key text, answer jsonb) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE mill.idempotency_keys k SET answer = finish_request.answer
        WHERE k.login = session_user AND k.caller = finish_request.caller AND k.key = finish_request.key
            AND k.answer IS NULL
$$;
COMMENT ON FUNCTION mill.finish_request IS
    'Stores the answer to a request that mill.begin_request has registered in the same transaction';
GRANT EXECUTE ON FUNCTION mill.finish_request TO mill_producer, mill_operator;

-- schema/41_schedule_views.sql --------------------------------------------------------------------

-- Status of schedules, the runs that they fired, and a dry run of a tick.

CREATE OR REPLACE VIEW mill.schedule_status AS
    SELECT s.id, s.name, s.mode,
        CASE WHEN (SELECT mill.sees_statements()) THEN s.timing ELSE mill.timing_without_probe(s.timing) END AS timing,
        s.jobs, s.declared_in, s.declared_as, s.enabled, s.removed_at,
        CASE WHEN s.removed_at IS NOT NULL THEN 'removed' WHEN NOT s.enabled THEN 'disabled'
            WHEN num_nonnulls(s.error, s.new_timing_error) > 0 THEN 'error'
            WHEN s.next_tick_at < now() - interval '1 minute' AND NOT (SELECT mill.fleet_paused()) THEN 'overdue'
            WHEN going.id IS NOT NULL THEN 'running' ELSE 'waiting' END AS status,
        s.next_fire_at, s.last_fire_at, s.last_finished_at, s.last_state, s.last_success_at, s.queued_fire_at,
        CASE WHEN (SELECT mill.sees_statements()) THEN s.error END AS error,
        going.id AS running_run_id, s.overlap, s.catch_up, s.max_lateness,
        coalesce(s.jitter, s.declared_jitter) AS jitter,
        s.max_attempts, s.retry_interval, CASE WHEN (SELECT mill.sees_statements()) THEN s.params END AS params,
        s.version, s.changed_at, s.changed_by,
        CASE WHEN s.next_tick_at < now() AND NOT (SELECT mill.fleet_paused()) THEN now() - s.next_tick_at
            END AS overdue, s.tags, s.metadata,
        CASE WHEN (SELECT mill.sees_statements()) THEN s.new_timing ELSE mill.timing_without_probe(s.new_timing) END
            AS new_timing,
        CASE WHEN (SELECT mill.sees_statements()) THEN s.new_timing_error END AS new_timing_error,
        s.trigger_checked_at, CASE WHEN (SELECT mill.sees_statements()) THEN s.trigger_result END AS trigger_result,
        -- As expressions, so that a query which does not read them does not evaluate them.
        (mill.declared_durations(s.jobs, s)).expected_duration, (mill.declared_durations(s.jobs, s)).deadline,
        (SELECT count(*) FROM mill.runs r WHERE r.schedule_id = s.id AND r.late_since IS NOT NULL) AS late_runs,
        (mill.declared_durations(s.jobs, s)).run_timeout
    -- The sum keeps the planner from searching all runs in the order of the primary key.
    FROM mill.schedules s LEFT JOIN LATERAL (SELECT min(r.id + 0) AS id FROM mill.runs r
        WHERE r.schedule_id = s.id AND r.state = 'running' AND r.backfill_id IS NULL) AS going ON true;
COMMENT ON VIEW mill.schedule_status IS
    'Schedules with their declaration, the settings of operators, the next fire, and the state of the last run. Hides '
    'params, errors and the SQL of triggers if settings.hide_statements is set';
GRANT SELECT ON mill.schedule_status TO mill_worker;

CREATE OR REPLACE VIEW mill.schedule_history AS
    SELECT r.id AS run_id, r.schedule_id, s.name AS schedule, r.fire_at, r.reason, r.state, r.started_at, r.finished_at,
        coalesce(r.finished_at, now()) - coalesce(r.restarted_at, r.started_at) AS duration, r.tasks, r.started_by,
        coalesce(live.attempt, one.attempts) AS attempts, one.task_id,
        CASE WHEN (SELECT mill.sees_statements()) THEN coalesce(failed.message, one.message, place.message) END
            AS message,
        place.worker, r.jobs, r.backfill_id, r.late_since
    FROM mill.runs r JOIN mill.schedules s ON s.id = r.schedule_id
        -- LIMIT makes each task a probe. The planner would join all tasks if the statistics say that there are few.
        LEFT JOIN LATERAL (SELECT t.* FROM mill.run_tasks t
            WHERE r.tasks = 1 AND t.run_id = r.id AND t.node = 1 LIMIT 1) AS one ON true
        -- While the task is in the queue, its number of attempts is there, and its last error in history.
        LEFT JOIN LATERAL (SELECT t.attempt FROM mill.tasks t
            WHERE one.state = 'released' AND t.id = one.task_id LIMIT 1) AS live ON true
        LEFT JOIN LATERAL (SELECT w.host || ':' || w.pid AS worker, a.message FROM mill.attempts a
            JOIN mill.worker_starts w ON w.id = a.worker_id WHERE a.task_id = one.task_id
            ORDER BY a.finished_at DESC LIMIT 1) AS place ON true
        LEFT JOIN LATERAL (SELECT t.name || ': ' || t.message AS message FROM mill.run_tasks t
            WHERE r.tasks > 1 AND t.run_id = r.id AND t.state = 'failed' ORDER BY t.node LIMIT 1) AS failed ON true;
COMMENT ON VIEW mill.schedule_history IS
    'Runs that schedules fired. For runs of one task: attempts, task_id, message and the worker of the last attempt. '
    'For other runs: message of the first failed task';

CREATE OR REPLACE FUNCTION mill.schedule_to_test(name text) RETURNS mill.schedules
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s mill.schedules;
    hidden CONSTANT text := 'hidden, as mill.settings.hide_statements demands';
BEGIN
    SELECT x.* INTO s FROM mill.schedules x WHERE x.name = schedule_to_test.name;
    s.definition := NULL;
    s.params := NULL;
    IF NOT mill.caller_sees_statements() THEN
        s.timing := mill.timing_without_probe(s.timing);
        s.new_timing := mill.timing_without_probe(s.new_timing);
        s.new_timing_error := CASE WHEN s.new_timing_error IS NOT NULL THEN hidden END;
        s.error := CASE WHEN s.error IS NOT NULL THEN hidden END;
        s.trigger := NULL;
        s.trigger_result := NULL;
    END IF;
    RETURN s;
END
$$;
COMMENT ON FUNCTION mill.schedule_to_test IS
    'Returns a schedule without definition and params, for mill.schedule_test. Hides errors and the SQL of a trigger '
    'from a caller who may not read statements';
GRANT EXECUTE ON FUNCTION mill.schedule_to_test TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.default_search_path() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce((SELECT substr(c.setting, length('search_path=') + 1)
        FROM pg_db_role_setting d CROSS JOIN unnest(d.setconfig) AS c(setting)
        WHERE starts_with(c.setting, 'search_path=') AND d.setrole IN (0, to_regrole(quote_ident(session_user)))
            AND d.setdatabase IN (0, (SELECT b.oid FROM pg_database b WHERE b.datname = current_database()))
        ORDER BY d.setrole = 0, d.setdatabase = 0 LIMIT 1),
        (SELECT s.boot_val FROM pg_settings s WHERE s.name = 'search_path'))
$$;
COMMENT ON FUNCTION mill.default_search_path IS
    'Returns the search_path that the login of the session has by ALTER ROLE or ALTER DATABASE, or else that of '
    'PostgreSQL. The session itself may have another one, as those of pgmill and of the console have';
GRANT EXECUTE ON FUNCTION mill.default_search_path TO mill_viewer;

-- The function has the rights of the caller, because a probe is arbitrary SQL. Only the probe has the search_path that
-- the login has by default.
CREATE OR REPLACE FUNCTION mill.run_probe(trigger jsonb, OUT answers integer, OUT pending bigint,
    OUT oldest_age interval)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    age double precision;
    measured boolean := false;
BEGIN
    answers := 0;
    -- STABLE alone would not prevent the probe from calling functions that write. The transaction is read-only until
    -- the error at the end of the block; nothing before it can set it back. The block ends by an error because the
    -- setting would otherwise last until the end of the caller's transaction. SET as a clause of the function is
    -- refused since PostgreSQL 16. Variables keep their values through the error.
    BEGIN
        PERFORM set_config('transaction_read_only', 'on', true),
            set_config('search_path', mill.default_search_path(), true);
        FOR pending, age IN EXECUTE mill.probe_query(trigger) LOOP
            answers := answers + 1;
        END LOOP;
        measured := true;
        RAISE SQLSTATE 'MT000';
    EXCEPTION WHEN SQLSTATE 'MT000' THEN
        IF NOT measured THEN
            RAISE;
        END IF;
    END;
    oldest_age := make_interval(secs => age);
END
$$;
COMMENT ON FUNCTION mill.run_probe IS
    'Runs the probe of a parsed trigger with the rights of the caller, read-only, for mill.schedule_test. answers: '
    'number of rows';
GRANT EXECUTE ON FUNCTION mill.run_probe TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.schedule_test(name text, trigger jsonb) RETURNS TABLE (would_fire boolean, reason text,
    pending_rows bigint, oldest_row_age interval, next_fire_at timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    s mill.schedules;
    answers integer;
    probed boolean;
    decision record;
BEGIN
    s := mill.schedule_to_test(schedule_test.name);
    IF s.id IS NULL THEN
        RETURN;
    END IF;
    s.trigger := coalesce(s.trigger, schedule_test.trigger);
    probed := s.trigger IS NOT NULL AND s.mode = 'triggered' AND s.removed_at IS NULL;
    IF probed THEN
        SELECT p.* INTO answers, pending_rows, oldest_row_age FROM mill.run_probe(s.trigger) AS p;
    END IF;
    IF probed AND (answers <> 1 OR pending_rows IS NULL) THEN
        RETURN QUERY SELECT false, format('the probe returned %s; expected one row with a number and a timestamp',
            CASE answers WHEN 0 THEN 'no row' WHEN 1 THEN 'no number' ELSE 'several rows' END),
            NULL::bigint, NULL::interval,
            NULL::timestamptz;
        RETURN;
    END IF;
    SELECT d.* INTO decision FROM mill.should_fire(s, pending_rows, oldest_row_age) AS d;
    would_fire := decision.fire;
    reason := decision.reason;
    IF s.trigger IS NULL AND s.mode = 'triggered' AND mill.is_active(s) AND NOT mill.sees_statements() THEN
        reason := 'its trigger is hidden, as mill.settings.hide_statements demands';
    END IF;
    IF probed AND NOT s.enabled THEN
        reason := reason || '; if it were enabled: ' || (SELECT e.reason
            FROM mill.evaluate_trigger(s.trigger, pending_rows, oldest_row_age, s.last_fire_at) AS e);
    END IF;
    IF mill.is_active(s) AND mill.fleet_paused() THEN
        would_fire := false;
        reason := format('%s; %s', mill.describe_fleet_pause(), reason);
    ELSIF s.next_tick_at < now() - interval '1 minute' THEN
        would_fire := false;
        reason := format('it has been due since %s, but no worker has processed it',
            date_trunc('second', s.next_tick_at));
    ELSIF s.error IS NOT NULL AND mill.is_active(s) AND reason <> s.error THEN
        reason := format('%s; error of the last fire: %s', reason, s.error);
    END IF;
    IF s.new_timing IS NOT NULL AND s.removed_at IS NULL THEN
        reason := format('%s; the new timing %s is not in force: %s', reason, s.new_timing,
            coalesce(s.new_timing_error, 'no worker has checked it yet'));
    END IF;
    reason := concat_ws('; ', reason, (SELECT string_agg(format('run %s has been late since %s', r.id,
            date_trunc('second', r.late_since)), '; ' ORDER BY r.id) FROM mill.late_runs r
        WHERE r.schedule = schedule_test.name), (SELECT
        string_agg(format('backfill %s %s, %s of %s instants are done%s', b.id,
            CASE b.state WHEN 'paused' THEN 'is paused' ELSE 'is in progress' END, b.fired + b.skipped - b.running,
            coalesce(b.instants::text, 'an unknown number of'), ', error: ' || b.error), '; ' ORDER BY b.id)
        FROM mill.backfill_status b WHERE b.schedule = schedule_test.name AND b.finished_at IS NULL));
    next_fire_at := s.next_fire_at;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION mill.schedule_test(text, jsonb) IS
    'As mill.schedule_test(text). trigger: the trigger of the timing, as parsed by the caller, which is used if no '
    'worker has parsed it';
GRANT EXECUTE ON FUNCTION mill.schedule_test(text, jsonb) TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.schedule_test(name text) RETURNS TABLE (would_fire boolean, reason text,
    pending_rows bigint, oldest_row_age interval, next_fire_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.* FROM mill.schedule_test(schedule_test.name, NULL) AS t
$$;
COMMENT ON FUNCTION mill.schedule_test(text) IS
    'Returns whether a tick would fire the schedule now, and why or why not, without firing it. Evaluates triggers '
    'with the rights of the caller, unless settings.hide_statements hides the trigger. Returns no row if the schedule '
    'does not exist';
GRANT EXECUTE ON FUNCTION mill.schedule_test(text) TO mill_viewer;

-- schema/42_views.sql -----------------------------------------------------------------------------

-- Monitoring: running tasks, status, history, failures, run times.
--
-- Also priorities, limits and groups, and the number of readers that could be busy. The views of runs
-- and of schedules are in 36_run_status.sql and 41_schedule_views.sql.
--
-- Statements and messages are read from mill.visible_tasks and mill.visible_attempts, which hide them if
-- settings.hide_statements is set.

-- Running tasks -----------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.command_progress() RETURNS TABLE (pid integer, message text,
    percent double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.pid, format('%s: %s%s', p.command, p.phase, ' ' || floor(d.percent) || ' %'), d.percent
    FROM (
        SELECT v.pid, 'vacuum' AS command, v.phase,
            CASE v.phase WHEN 'scanning heap' THEN v.heap_blks_scanned
                WHEN 'vacuuming heap' THEN v.heap_blks_vacuumed END AS done,
            v.heap_blks_total AS total
        FROM pg_stat_progress_vacuum v
        UNION ALL
        SELECT a.pid, 'analyze', a.phase, a.sample_blks_scanned, a.sample_blks_total
        FROM pg_stat_progress_analyze a
        UNION ALL
        -- Scan phases count blocks, sort and merge phases count tuples, and wait phases of CONCURRENTLY count lockers.
        SELECT i.pid, lower(i.command), i.phase,
            CASE WHEN i.phase LIKE 'waiting %' THEN i.lockers_done WHEN i.blocks_total > 0 THEN i.blocks_done
                ELSE i.tuples_done END,
            CASE WHEN i.phase LIKE 'waiting %' THEN i.lockers_total WHEN i.blocks_total > 0 THEN i.blocks_total
                ELSE i.tuples_total END
        FROM pg_stat_progress_create_index i
        UNION ALL
        SELECT c.pid, lower(c.command), c.phase, CASE c.phase WHEN 'seq scanning heap' THEN c.heap_blks_scanned END,
            c.heap_blks_total
        FROM pg_stat_progress_cluster c
        UNION ALL
        SELECT c.pid, lower(c.command), c.tuples_processed || ' rows', c.bytes_processed, c.bytes_total
        FROM pg_stat_progress_copy c) AS p
        CROSS JOIN LATERAL (SELECT least(100, 100.0 * p.done / nullif(p.total, 0))::double precision AS percent) AS d
$$;
COMMENT ON FUNCTION mill.command_progress IS
    'Returns the progress that the server reports for VACUUM, ANALYZE, CREATE INDEX, REINDEX, CLUSTER and COPY, by '
    'backend, for mill.backends. percent: of the current phase';

CREATE OR REPLACE FUNCTION mill.backends() RETURNS TABLE (pid integer, backend_start timestamptz,
    state text, wait_event_type text, wait_event text, query text, blocked_by integer[], blockers jsonb,
    message text, percent double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH activity AS MATERIALIZED (
        SELECT a.pid, a.backend_start, a.state, a.wait_event_type, a.wait_event, a.query, a.usename,
            a.application_name, a.xact_start
        FROM pg_stat_activity a
    ), own AS MATERIALIZED (
        -- One row per backend: tasks in a shared commit have the same backend.
        SELECT a.*, pg_blocking_pids(a.pid) AS blocked_by FROM activity a
        WHERE (a.pid, a.backend_start) IN (SELECT t.session_pid, t.session_started_at FROM mill.tasks t
            WHERE t.state = 'running')
    )
    SELECT o.pid, o.backend_start, o.state, o.wait_event_type, o.wait_event,
        CASE WHEN (SELECT mill.caller_sees_statements()) THEN o.query END, o.blocked_by,
        (SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('pid', b.pid, 'task_id', t.id, 'name', t.name,
                'application', CASE WHEN b.pid = 0 THEN 'a prepared transaction' ELSE a.application_name END,
                'user', a.usename, 'state', a.state, 'transaction_started_at', a.xact_start)) ORDER BY b.pid)
            FROM (SELECT DISTINCT u.pid FROM unnest(o.blocked_by) AS u(pid)) AS b
                LEFT JOIN activity a ON a.pid = b.pid
                LEFT JOIN LATERAL (SELECT r.id, r.name FROM mill.tasks r WHERE r.state = 'running'
                    AND r.session_pid = b.pid AND r.session_started_at = a.backend_start
                    ORDER BY r.id LIMIT 1) AS t ON true),
        p.message, p.percent
    FROM own o LEFT JOIN mill.command_progress() p ON p.pid = o.pid
$$;
COMMENT ON FUNCTION mill.backends IS
    'Returns the backends of running tasks, and no other backends: activity, waits, blockers, and the progress that '
    'the server reports for the command. blockers: [{"pid", "task_id", "name", "application", "user", "state", '
    '"transaction_started_at"}]; only blockers that run a task have task_id and name. query: null if the caller may '
    'not read statements';
GRANT EXECUTE ON FUNCTION mill.backends TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.sessions() RETURNS TABLE (pid integer, backend_start timestamptz, kind text,
    login text, application_name text, state text, xact_start timestamptz, age_xids integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.pid, a.backend_start, a.backend_type, a.usename::text, a.application_name, a.state, a.xact_start,
        greatest(age(a.backend_xmin), age(a.backend_xid))
    FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.usesysid IS NOT NULL OR a.backend_type = 'walsender'
$$;
COMMENT ON FUNCTION mill.sessions IS
    'Returns the sessions of this database and the standbys, without their statements. A role that is no member of '
    'pg_read_all_stats sees nothing else of the sessions of others. age_xids: age of the oldest transaction id that '
    'the session needs; null: none. state is null if the owner of this function may not see it either';
GRANT EXECUTE ON FUNCTION mill.sessions TO mill_worker, mill_viewer;

CREATE OR REPLACE VIEW mill.running AS
    SELECT t.id, t.queue, t.name, t.priority, t.mode, t.attempt, t.claimed_at AS started_at,
        now() - t.claimed_at AS running_duration, t.claimed_by AS worker_id, s.host, s.pid AS worker_pid,
        t.session_pid AS pid, b.state AS backend_state, b.wait_event_type, b.wait_event,
        b.blocked_by, r.requested_at AS cancel_requested_at, t.statement,
        -- Progress reported by the task takes precedence over the server's progress of one command.
        coalesce(CASE WHEN p.message IS NOT NULL AND (SELECT mill.sees_statements()) THEN p.message END,
            b.message) AS progress,
        CASE WHEN p.percent IS NOT NULL AND (SELECT mill.sees_statements()) THEN p.percent
            ELSE b.percent END AS percent,
        p.reported_at AS reported_at, CASE WHEN (SELECT mill.sees_statements()) THEN p.notices END AS notices,
        b.blockers, t.tags, t.metadata, t.options, t.run_id, nullif(t.run_as, '') AS run_as, l.login,
        CASE WHEN (SELECT mill.sees_statements()) THEN b.query END AS query
    FROM mill.visible_tasks t
        LEFT JOIN mill.backends() b ON b.pid = t.session_pid AND b.backend_start = t.session_started_at
        LEFT JOIN mill.sessions() l ON l.pid = t.session_pid AND l.backend_start = t.session_started_at
        LEFT JOIN mill.worker_starts s ON s.id = t.claimed_by
        LEFT JOIN mill.cancel_requests r ON r.task_id = t.id
        LEFT JOIN mill.progress p ON p.task_id = t.id AND p.worker_id = t.claimed_by AND p.attempt = t.attempt
    WHERE t.state = 'running';
COMMENT ON VIEW mill.running IS
    'Running tasks with worker, run, login, start time, wait events, blockers, progress and last notices. query: what '
    'the backend executes, which can be the statement of the task or one of the worker';
GRANT SELECT ON mill.running TO mill_worker;

-- Capacity ----------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW mill.queue_status AS
    SELECT name AS queue,
        coalesce(q.paused, false) AS paused,
        coalesce(t.pending, 0) AS pending,
        coalesce(t.running, 0) AS running,
        coalesce(t.scheduled, 0) AS scheduled,
        coalesce(t.blocked, 0) AS blocked,
        t.oldest_pending_at,
        now() - t.oldest_pending_at AS oldest_pending_age,
        now() - t.oldest_running_at AS longest_running,
        q.shared_commit,
        l.max_running,
        l.rate_starts,
        l.rate_period,
        coalesce(q.store_params, true) AS store_params,
        coalesce(q.store_output, true) AS store_output,
        q.max_replication_lag,
        q.max_snapshot_age,
        q.max_active_sessions,
        q.held_back
    FROM mill.queues q FULL JOIN (
        SELECT queue AS name,
            count(*) FILTER (WHERE state = 'pending') AS pending,
            count(*) FILTER (WHERE state = 'running') AS running,
            count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
            count(*) FILTER (WHERE state = 'blocked') AS blocked,
            min(due_at) FILTER (WHERE state = 'pending') AS oldest_pending_at,
            min(claimed_at) FILTER (WHERE state = 'running') AS oldest_running_at
        FROM mill.tasks GROUP BY queue) t USING (name)
        FULL JOIN (SELECT * FROM mill.limits WHERE kind = 'queue') l USING (name);
COMMENT ON VIEW mill.queue_status IS
    'Queues with the number of tasks by state, the age of the oldest pending task, and their settings';
GRANT SELECT ON mill.queue_status TO mill_worker;

CREATE OR REPLACE VIEW mill.priority_status AS
    SELECT p.priority, p.weight, coalesce(t.pending, 0) AS pending, coalesce(t.running, 0) AS running,
        now() - t.oldest_pending_at AS oldest_pending_age
    FROM mill.priorities p LEFT JOIN (
        SELECT priority, count(*) FILTER (WHERE state = 'pending') AS pending,
            count(*) FILTER (WHERE state = 'running') AS running,
            min(due_at) FILTER (WHERE state = 'pending') AS oldest_pending_at
        FROM mill.tasks GROUP BY priority) t USING (priority);
COMMENT ON VIEW mill.priority_status IS
    'Priorities with weight, number of pending and running tasks, and the age of the oldest pending task';
GRANT SELECT ON mill.priority_status TO mill_worker;

CREATE OR REPLACE VIEW mill.limit_status AS
    SELECT l.*, coalesce(p.running, 0) AS running, coalesce(t.waiting, 0) AS waiting
    FROM mill.effective_limits l
        -- A filter, not a condition: for one limit, a scan of the index permits_task may seem cheaper than a probe.
        LEFT JOIN (SELECT limit_id AS id, count(*) FILTER (WHERE counts_until IS NULL) AS running FROM mill.permits
            GROUP BY limit_id) p USING (id)
        LEFT JOIN (SELECT blocking_limit_id AS id, count(*) AS waiting FROM mill.tasks
            WHERE state = 'blocked' GROUP BY blocking_limit_id) t USING (id);
COMMENT ON VIEW mill.limit_status IS
    'Limits with their current values, the number of tasks that hold a permit (pending or running), and the number of '
    'tasks that wait for one';
GRANT SELECT ON mill.limit_status TO mill_worker;

CREATE OR REPLACE VIEW mill.group_status AS
    SELECT g.*, a.open, a.until AS next_change_at, coalesce(t.pending, 0) AS pending,
        coalesce(t.running, 0) AS running, coalesce(t.blocked, 0) AS blocked
    FROM mill.groups g
        CROSS JOIN LATERAL mill.active_period(g.opens, g.closes, g.zone, now()) AS a
        LEFT JOIN (SELECT group_name AS name, count(*) FILTER (WHERE state = 'pending') AS pending,
                count(*) FILTER (WHERE state = 'running') AS running,
                count(*) FILTER (WHERE state = 'blocked') AS blocked
            FROM mill.tasks WHERE group_name IS NOT NULL GROUP BY group_name) t USING (name);
COMMENT ON VIEW mill.group_status IS
    'Groups with their settings, whether the active period is open and until when, and the number of tasks by state';

-- Finds the distinct queues of the pending index with a loose index scan, one probe per queue, and then
-- counts up to 100000 entries. A paused queue of any size costs one probe. Includes scheduled tasks that
-- are due, because without a worker nothing promotes them to pending.
CREATE OR REPLACE FUNCTION mill.scale_hint(queues text[] DEFAULT NULL) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    WITH RECURSIVE walk AS (
        (SELECT t.queue FROM mill.tasks t WHERE t.state = 'pending' ORDER BY t.queue LIMIT 1)
        UNION ALL
        SELECT (SELECT t.queue FROM mill.tasks t WHERE t.state = 'pending' AND t.queue > walk.queue
            ORDER BY t.queue LIMIT 1)
        FROM walk WHERE walk.queue IS NOT NULL
    ), paused AS MATERIALIZED (
        SELECT q.name FROM mill.queues q WHERE q.paused OR q.held_back IS NOT NULL
    ), waiting AS MATERIALIZED (
        SELECT FROM walk CROSS JOIN LATERAL (
            SELECT FROM mill.tasks t WHERE t.state = 'pending' AND t.queue = walk.queue LIMIT 100000) AS task
        WHERE (scale_hint.queues IS NULL OR walk.queue = ANY (scale_hint.queues))
            AND walk.queue NOT IN (SELECT p.name FROM paused p) AND NOT (SELECT mill.fleet_paused())
        LIMIT 100000
    ), due AS MATERIALIZED (
        SELECT t.queue FROM mill.tasks t WHERE t.state = 'scheduled' AND t.due_at <= now() LIMIT 100000
    )
    SELECT (SELECT count(*) FROM waiting)
        + (SELECT count(*) FROM due d
            WHERE (scale_hint.queues IS NULL OR d.queue = ANY (scale_hint.queues))
                AND d.queue NOT IN (SELECT p.name FROM paused p) AND NOT (SELECT mill.fleet_paused()))
        + (SELECT count(*) FROM mill.tasks t WHERE t.state = 'running'
            AND (scale_hint.queues IS NULL OR t.queue = ANY (scale_hint.queues)))
$$;
COMMENT ON FUNCTION mill.scale_hint IS
    'Returns the number of readers that could be busy now, in all queues or in the given ones: tasks ready to run '
    '(pending, or scheduled and due) plus running tasks. Divide it by the readers per worker to get the number of '
    'workers. Excludes tasks of paused and held back queues, blocked tasks (more workers do not help them) and '
    'tasks that are not due; while the fleet is paused, excludes all tasks that wait. Includes running tasks of '
    'paused queues, so that a busy fleet is not scaled down. Counts at most 100000 pending and 100000 due tasks. '
    'Ignores profiles: a task whose profile no worker has is counted';
GRANT EXECUTE ON FUNCTION mill.scale_hint TO mill_viewer;

-- History -----------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW mill.history AS
    SELECT a.task_id, a.attempt, a.final, a.outcome, a.queue, a.name, a.priority, a.mode,
        a.enqueued_at, a.due_at, a.started_at, a.finished_at,
        coalesce(a.started_at, a.finished_at) - a.due_at AS wait_duration,
        a.finished_at - a.started_at AS duration,
        a.rows, a.sqlstate, a.message, a.detail, a.hint, a.context, a.position, a.notices, a.result,
        a.worker_id, s.host, s.pid AS worker_pid, a.session_pid, a.statement, a.params, a.run_id,
        -- Null for tasks without explain: the server has no such counters per backend.
        a.plan, (a.plan->'Plan'->>'WAL Bytes')::bigint AS wal_bytes,
        (a.plan->'Plan'->>'Shared Hit Blocks')::bigint AS blocks_hit,
        (a.plan->'Plan'->>'Shared Read Blocks')::bigint AS blocks_read,
        (a.plan->'Plan'->>'Temp Written Blocks')::bigint AS temp_blocks_written,
        a.tags, a.metadata, a.options
    FROM mill.visible_attempts a LEFT JOIN mill.worker_starts s ON s.id = a.worker_id;
COMMENT ON VIEW mill.history IS
    'Finished attempts with outcome, wait and run time, error, notices and first rows. For tasks with explain also '
    'the plan and its WAL and block counts';

CREATE OR REPLACE FUNCTION mill.durations_of(queue text, name text) RETURNS TABLE (attempts bigint,
    failures bigint, p50 interval, p95 interval, mean interval, last interval,
    last_at timestamptz, trend double precision)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*), count(*) FILTER (WHERE a.outcome::text NOT IN ('succeeded', 'cancelled', 'interrupted')),
        percentile_cont(0.5) WITHIN GROUP (ORDER BY a.run), percentile_cont(0.95) WITHIN GROUP (ORDER BY a.run),
        avg(a.run), min(a.run) FILTER (WHERE a.n = 1), max(a.finished_at),
        CASE WHEN count(a.run) >= 40 THEN
            extract(epoch FROM percentile_cont(0.5) WITHIN GROUP (ORDER BY a.run) FILTER (WHERE a.n <= 20))
            / nullif(extract(epoch FROM percentile_cont(0.5) WITHIN GROUP (ORDER BY a.run)
                FILTER (WHERE a.n BETWEEN 21 AND 220)), 0) END::double precision
    FROM (SELECT r.outcome, r.finished_at,
            CASE WHEN r.outcome = 'succeeded' THEN r.finished_at - r.started_at END AS run,
            CASE WHEN r.outcome = 'succeeded'
                THEN row_number() OVER (PARTITION BY r.outcome = 'succeeded' ORDER BY r.finished_at DESC) END AS n
        FROM (SELECT x.outcome, x.started_at, x.finished_at FROM mill.attempts x
            WHERE x.queue = durations_of.queue AND x.name = durations_of.name AND x.started_at IS NOT NULL
                AND x.finished_at >= date_trunc('day', now(), 'UTC') - interval '144 hours'
                AND x.finished_at < now() + interval '1 hour'
            ORDER BY x.finished_at DESC LIMIT 500) AS r) AS a
$$;
COMMENT ON FUNCTION mill.durations_of IS
    'Returns run times of tasks with this name, from at most the last 500 attempts of the last seven days (UTC). p50, '
    'p95, mean and last cover successful attempts. trend: median of the last 20 successful attempts divided by the '
    'median of up to 200 before them; null if there are fewer than 40';
GRANT EXECUTE ON FUNCTION mill.durations_of TO mill_viewer;

-- Finds the distinct names with a loose index scan, one probe per name. The period is a number of whole
-- days. Otherwise each probe could have to skip up to a day of index entries that are too old.
CREATE OR REPLACE VIEW mill.durations AS
    WITH RECURSIVE named (queue, name) AS (
        (SELECT a.queue, a.name FROM mill.attempts a WHERE a.name IS NOT NULL
            AND a.finished_at >= date_trunc('day', now(), 'UTC') - interval '144 hours'
            AND a.finished_at < now() + interval '1 hour' ORDER BY a.queue, a.name LIMIT 1)
        UNION ALL
        SELECT next.queue, next.name FROM named x CROSS JOIN LATERAL (
            SELECT a.queue, a.name FROM mill.attempts a
            WHERE a.name IS NOT NULL AND (a.queue, a.name) > (x.queue, x.name)
                AND a.finished_at >= date_trunc('day', now(), 'UTC') - interval '144 hours'
                AND a.finished_at < now() + interval '1 hour' ORDER BY a.queue, a.name LIMIT 1) AS next
    )
    SELECT n.queue, n.name, d.* FROM (SELECT x.queue, x.name FROM named x LIMIT 1000) AS n
        CROSS JOIN LATERAL mill.durations_of(n.queue, n.name) AS d
    WHERE d.attempts > 0;
COMMENT ON VIEW mill.durations IS
    'Durations of tasks by queue and task name, for the first 1000 names, see mill.durations_of';

-- Slow tasks and runs -----------------------------------------------------------------------------

-- Looks up the attempts of at most 100 tasks, in the index on names; the limits keep the cost independent
-- of the size of the history.
CREATE OR REPLACE VIEW mill.slow_tasks AS
    SELECT t.id, t.queue, t.name, t.claimed_at AS started_at, now() - t.claimed_at AS duration, u.p95,
        d.expected_duration
    FROM (SELECT r.id, r.queue::text AS queue, r.name::text AS name, r.claimed_at, r.run_id, r.node FROM mill.tasks r
            WHERE r.state = 'running' AND r.name IS NOT NULL AND r.claimed_at < now() - interval '1 minute'
            ORDER BY r.claimed_at LIMIT 100) AS t
        CROSS JOIN mill.settings s
        LEFT JOIN mill.run_tasks d ON d.run_id = t.run_id AND d.node = t.node
        CROSS JOIN LATERAL (
            SELECT percentile_cont(0.95) WITHIN GROUP (ORDER BY x.run) AS p95, count(*) AS runs
            FROM (SELECT l.finished_at - l.started_at AS run FROM (
                    SELECT a.outcome, a.started_at, a.finished_at FROM mill.attempts a
                    WHERE a.queue = t.queue AND a.name = t.name
                        AND a.finished_at >= date_trunc('day', now(), 'UTC') - interval '144 hours'
                        AND a.finished_at < now() + interval '1 hour'
                    ORDER BY a.finished_at DESC LIMIT 200) AS l
                WHERE l.outcome = 'succeeded' ORDER BY l.finished_at DESC LIMIT 30) AS x) AS u
    WHERE now() - t.claimed_at > coalesce(d.expected_duration, CASE WHEN u.runs >= 5 THEN s.slow_factor * u.p95 END);
COMMENT ON VIEW mill.slow_tasks IS
    'Tasks that have run for more than a minute, and for more than their expected_duration, or without one, for more '
    'than settings.slow_factor times the usual duration of '
    'tasks with their queue and name. p95: the usual duration, the 95th percentile of the last 30 successful attempts '
    'of the last seven days. Only tasks with a name that has at least five such attempts; of the running tasks, the '
    '100 longest';

CREATE OR REPLACE FUNCTION mill.slow_tasks_unless_locked() RETURNS SETOF mill.slow_tasks
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT t.* FROM mill.slow_tasks t;
EXCEPTION WHEN lock_not_available THEN
    NULL;
END
$$;
COMMENT ON FUNCTION mill.slow_tasks_unless_locked IS
    'Returns mill.slow_tasks, or no rows if the history is locked for longer than lock_timeout. For overviews, which '
    'show everything else nevertheless';
GRANT EXECUTE ON FUNCTION mill.slow_tasks_unless_locked TO mill_viewer;

-- No index covers the jobs of runs, so the view learns from the newest 1000 runs.
CREATE OR REPLACE VIEW mill.slow_runs AS
    WITH learned AS MATERIALIZED (
        SELECT r.jobs, percentile_cont(0.95) WITHIN GROUP (ORDER BY r.run) AS p95
        FROM (SELECT n.jobs, n.finished_at - n.started_at AS run,
                row_number() OVER (PARTITION BY n.jobs ORDER BY n.id DESC) AS place
            FROM (SELECT o.* FROM mill.runs o ORDER BY o.id DESC LIMIT 1000) AS n
            WHERE n.state = 'succeeded' AND n.restarts = 0) AS r
        WHERE r.place <= 30 GROUP BY r.jobs HAVING count(*) >= 5
    )
    SELECT g.id, g.jobs, g.started_at, now() - g.began_at AS duration, u.p95, g.expected_duration
    FROM (SELECT r.id, r.jobs, r.started_at, coalesce(r.restarted_at, r.started_at) AS began_at, r.expected_duration
            FROM mill.runs r
            WHERE r.state = 'running' ORDER BY r.schedule_id LIMIT 500) AS g
        LEFT JOIN learned u ON u.jobs = g.jobs CROSS JOIN mill.settings s
    WHERE now() - g.began_at > coalesce(g.expected_duration,
        CASE WHEN u.p95 IS NOT NULL THEN greatest(interval '1 minute', s.slow_factor * u.p95) END);
COMMENT ON VIEW mill.slow_runs IS
    'Runs in progress for longer than their expected_duration. Of runs without one: those in progress for more than a '
    'minute, and for more than settings.slow_factor times the usual duration of runs '
    'of their jobs. p95: the usual duration, the 95th percentile of up to 30 successful runs of the same jobs without '
    'a restart, at least five, among the newest 1000 runs. Searches 500 runs in progress';

-- Failures ----------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.message_pattern(message text) RETURNS text
LANGUAGE sql IMMUTABLE COST 1000 SET search_path = pg_catalog, pg_temp AS $$
    -- The characters are listed, because what a class such as [:alnum:] has depends on the collation. A single quote
    -- behind a letter of an alphabet is an apostrophe; in Chinese and Japanese, a quote can follow a word directly.
    SELECT left(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(left(message, 1000),
        $re$\m[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\M$re$, '#', 'g'),
        '"[^"]*"', '"…"', 'g'),
        format('([%1$s])[^%1$s]*([%1$s])', $re$\u00ab\u00bb\u201c-\u201f\u2039\u203a\u275d-\u2760\u276e\u276f\u2e42$re$
            || $re$\u300c-\u300f\u301d-\u301f\ufe41-\ufe44\uff02\uff62\uff63$re$), $re$\1…\2$re$, 'g'),
        $re$(^|[^A-Za-z0-9\u00c0-\u058f])(['\u2018-\u201b])[^'\u2018-\u201b]*(['\u2018-\u201b])$re$,
            $re$\1\2…\3$re$, 'g'),
        format($re$0x[0-9a-fA-F]+|[%1$s]+([.,:\u00a0\u2009\u202f-][%1$s]+)*$re$,
            $re$0-9\u0660-\u0669\u06f0-\u06f9\u0966-\u096f\uff10-\uff19$re$), '#', 'g'), 300)
$$;
COMMENT ON FUNCTION mill.message_pattern IS
    'Returns an error message without its variable parts: quoted names and values, numbers, dates and UUIDs';
GRANT EXECUTE ON FUNCTION mill.message_pattern TO mill_viewer;

-- Has the rights of the caller, and reads the view that hides messages.
CREATE OR REPLACE FUNCTION mill.failure_groups(since interval DEFAULT '1 day') RETURNS TABLE (outcome mill.outcome,
    sqlstate text, message text, attempts bigint, tasks bigint, first_at timestamptz, last_at timestamptz,
    queues text[], names text[], examples bigint[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.outcome, f.sqlstate, mill.message_pattern(f.message), count(*), count(DISTINCT f.task_id),
        min(f.finished_at), max(f.finished_at), array_agg(DISTINCT f.queue),
        (array_agg(DISTINCT f.name) FILTER (WHERE f.name IS NOT NULL))[1:10],
        (array_agg(f.task_id ORDER BY f.finished_at DESC) FILTER (WHERE f.newest))[1:5]
    FROM (SELECT a.*, a.finished_at = max(a.finished_at) OVER (PARTITION BY a.task_id, a.outcome, a.sqlstate,
            mill.message_pattern(a.message)) AS newest
        FROM (SELECT a.outcome, a.sqlstate, a.message, a.task_id, a.finished_at, a.queue, a.name
            FROM mill.visible_attempts a
            WHERE a.finished_at > now() - since AND a.outcome <> 'succeeded' AND a.outcome <> 'cancelled'
                AND a.outcome::text <> 'interrupted'
            ORDER BY a.finished_at DESC LIMIT 10000) AS a) AS f
    GROUP BY f.outcome, f.sqlstate, mill.message_pattern(f.message)
    ORDER BY count(*) DESC, max(f.finished_at) DESC
$$;
COMMENT ON FUNCTION mill.failure_groups IS
    'Returns failed attempts of the given period, at most the last 10000, grouped by outcome, SQLSTATE and '
    'mill.message_pattern, most frequent first. names: up to 10. examples: ids of the last 5 tasks';
GRANT EXECUTE ON FUNCTION mill.failure_groups TO mill_viewer;

CREATE OR REPLACE VIEW mill.failures AS
    SELECT g.* FROM mill.failure_groups() AS g;
COMMENT ON VIEW mill.failures IS 'Failed attempts of the last day, grouped as by mill.failure_groups';

-- schema/43_citus.sql -----------------------------------------------------------------------------

-- Citus: exactly once for tasks that write distributed tables.
--
-- On a coordinator.
--
-- If a transaction has written to one data node only, Citus commits it there with a plain COMMIT, and then on
-- the coordinator. A crash of the coordinator in between would keep the effects of a task and lose its
-- completion. Citus uses PREPARE TRANSACTION instead if the transaction also writes to a table of the
-- coordinator that Citus manages. So on a coordinator mill.two_phase is such a table. A completion deletes the
-- task from mill.tasks, which fires a trigger, which deletes no row of mill.two_phase. Without Citus there is no
-- trigger, and nothing uses the table.

CREATE TABLE IF NOT EXISTS mill.two_phase (k integer PRIMARY KEY);
COMMENT ON TABLE mill.two_phase IS
    'Always empty. On a coordinator of Citus, Citus manages this table, and a statement on it makes a transaction '
    'commit in two phases';
GRANT SELECT ON mill.two_phase TO mill_worker;

CREATE OR REPLACE FUNCTION mill.require_two_phase() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM mill.two_phase p WHERE p.k = 0;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mill.require_two_phase IS
    'Trigger of mill.tasks on a coordinator of Citus: makes the transaction commit in two phases';

DO $$
BEGIN
    -- `pgmill doctor` applies this file under another name, in a transaction that is rolled back.
    IF current_setting('mill.copy', true) = 'on'
        OR NOT EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'citus')
    THEN
        RETURN;
    END IF;
    -- A data node has another group.
    IF EXISTS (SELECT FROM pg_dist_local_group g WHERE g.groupid <> 0) THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_dist_node n WHERE n.groupid = 0) THEN
        RAISE WARNING 'tasks that write distributed tables run at least once: the coordinator of Citus has no address'
            USING HINT = 'Run SELECT citus_set_coordinator_host(…), and then pgmill init again.';
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_dist_partition p WHERE p.logicalrelid = 'mill.two_phase'::regclass) THEN
        -- Citus connects to the nodes as the current role, and mill_owner cannot log in.
        RESET ROLE;
        PERFORM citus_add_local_table_to_metadata('mill.two_phase');
        SET LOCAL ROLE mill_owner;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = 'mill.tasks'::regclass AND g.tgname = 'require_two_phase')
    THEN
        CREATE TRIGGER require_two_phase AFTER DELETE ON mill.tasks
            FOR EACH STATEMENT EXECUTE FUNCTION mill.require_two_phase();
    END IF;
END
$$;

-- schema/44_sequences.sql -------------------------------------------------------------------------

-- Sequences that are behind the rows of their tables.
--
-- Logical replication copies rows and leaves sequences alone. After a switch to such a copy, enqueues fail with
-- duplicate keys, and new tasks get ids of earlier ones, which history contains. Each worker that registers repairs
-- the sequences.

CREATE OR REPLACE FUNCTION mill.sequences_behind() RETURNS TABLE (sequence text, next_id bigint, highest_id bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- The execution of a query locks all partitions that the planner does not exclude, so the bounds are constants.
    in_history CONSTANT text :=
        'SELECT max(a.task_id) FROM mill.attempts a WHERE a.finished_at >= %L AND a.finished_at < %L';
    today CONSTANT timestamptz := date_trunc('day', now(), 'UTC');
    query text;
    in_recent_days bigint;
    some_behind boolean := false;
BEGIN
    FOR sequence, query IN
        SELECT x.* FROM (
            SELECT pg_get_serial_sequence(format('mill.%I', c.relname), a.attname),
                format('SELECT max(%I) FROM mill.%I', a.attname, c.relname)
            FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE c.relnamespace = 'mill'::regnamespace AND NOT c.relispartition
                AND a.attidentity <> '' AND NOT a.attisdropped
            UNION ALL VALUES ('mill.target_epochs', 'SELECT max(t.epoch) FROM mill.targets t'),
                ('mill.added_nodes', 'SELECT max(t.node) FROM mill.run_tasks t')) AS x (name, query)
        ORDER BY x.name = 'mill.added_nodes', x.name
    LOOP
        -- The nodes have no index of their own, so their maximum takes a read of the whole table.
        CONTINUE WHEN sequence = 'mill.added_nodes' AND NOT some_behind;
        EXECUTE format('SELECT s.last_value + s.is_called::integer FROM %s s', sequence) INTO next_id;
        EXECUTE query INTO highest_id;
        IF sequence = 'mill.tasks_id_seq' THEN
            EXECUTE format(in_history, today - interval '2 days', today + interval '2 days') INTO in_recent_days;
            -- The highest id need not be in the last days: a task with a lower id may have ended later. That matters
            -- only if the sequence is behind, and if it may be.
            IF next_id = 1 OR in_recent_days IS NULL OR next_id <= in_recent_days THEN
                EXECUTE format(in_history, today - interval '400 days', today + interval '2 days')
                    INTO in_recent_days;
            END IF;
            highest_id := greatest(highest_id, in_recent_days);
        END IF;
        IF next_id <= highest_id THEN
            some_behind := true;
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.sequences_behind IS
    'Returns the sequences whose next value is not higher than the highest value in the tables, as after a switch to '
    'a copy that logical replication has made. For ids of tasks, this includes the history of the last 400 days';
GRANT EXECUTE ON FUNCTION mill.sequences_behind TO mill_viewer, mill_worker;

CREATE OR REPLACE FUNCTION mill.repair_sequences() RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    locked text[] := ARRAY(SELECT b.sequence FROM mill.sequences_behind() AS b);
    repaired text[] := '{}';
    changes jsonb := '{}';
    behind record;
    name text;
BEGIN
    -- This changes nothing. It waits for the transactions that have taken a value, whose rows are not visible yet, and
    -- lets no other session take one until the end of this transaction.
    FOREACH name IN ARRAY locked LOOP
        EXECUTE format('ALTER SEQUENCE %s NO CYCLE', name);
    END LOOP;
    IF locked <> '{}' THEN
        FOR behind IN SELECT b.* FROM mill.sequences_behind() AS b WHERE b.sequence = ANY (locked) LOOP
            EXECUTE format('ALTER SEQUENCE %s RESTART WITH %s', behind.sequence, behind.highest_id + 1);
            repaired := repaired || behind.sequence;
            changes := changes || jsonb_build_object(behind.sequence,
                jsonb_build_object('old', behind.next_id, 'new', behind.highest_id + 1));
        END LOOP;
    END IF;
    -- Comes last: the sequence of mill.audit can be one of those that were behind.
    IF repaired <> '{}' THEN
        PERFORM mill.record_audit('repair_sequences', 'sequences', changes);
    END IF;
    RETURN repaired;
END
$$;
COMMENT ON FUNCTION mill.repair_sequences IS
    'Moves the sequences that mill.sequences_behind lists past the highest value in the tables, and never moves a '
    'sequence back. Waits for transactions that have taken a value, for up to two seconds per sequence. Returns the '
    'names of the sequences';
GRANT EXECUTE ON FUNCTION mill.repair_sequences TO mill_operator, mill_worker;

-- schema/45_wait.sql ------------------------------------------------------------------------------

-- Wait: procedures that return when a task or a run has ended.
--
-- For psql and other SQL clients.
--
-- A procedure that commits can have no SET clause and cannot be SECURITY DEFINER. Therefore these procedures
-- run with the rights and the search_path of their caller. They qualify all names, and use operators only for
-- arguments of exactly the types that an operator of pg_catalog has: an operator that another role has made in a
-- schema of the search_path would otherwise fit better.

CREATE OR REPLACE PROCEDURE mill.wait(task_id bigint, timeout interval DEFAULT NULL,
    INOUT outcome mill.outcome DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
    give_up_at timestamptz := pg_catalog.clock_timestamp() + timeout;
    pause double precision := 0.01;
    live boolean;
BEGIN
    LOOP
        -- Ends the snapshot of the previous look. A snapshot that is as old as the wait would keep VACUUM from
        -- removing the dead rows of the whole database. Before the first look, the commit ensures that a call
        -- inside a transaction block fails every time, and not only if the task is still live.
        COMMIT;
        SELECT t.id IS NOT NULL, CASE WHEN t.id IS NULL THEN (SELECT a.outcome FROM mill.attempts a
                WHERE a.task_id = wait.task_id AND a.final ORDER BY a.finished_at DESC LIMIT 1) END
            INTO live, outcome
            FROM (SELECT) AS always LEFT JOIN mill.tasks t ON t.id = wait.task_id;
        IF NOT live AND outcome IS NULL THEN
            RAISE EXCEPTION 'there is no task %', task_id USING ERRCODE = '22023',
                HINT = 'A task exists for others when the transaction that enqueued it has committed.';
        END IF;
        EXIT WHEN NOT live;
        IF pg_catalog.clock_timestamp() >= give_up_at THEN
            RAISE EXCEPTION 'task % has not ended within %', task_id, timeout USING ERRCODE = '57014',
                DETAIL = 'why: ' || mill.why(task_id), HINT = 'The task remains in the queue.';
        END IF;
        PERFORM pg_catalog.pg_sleep(pause);
        pause := LEAST(pause + pause, 0.64);
    END LOOP;
END
$$;
COMMENT ON PROCEDURE mill.wait IS
    'Waits until a task has ended, and returns its outcome. After timeout (null: never), raises an error that says why '
    'the task has not ended. Commits between its looks, so it cannot be called inside a transaction block';
GRANT EXECUTE ON PROCEDURE mill.wait TO mill_viewer;

CREATE OR REPLACE PROCEDURE mill.wait_run(run_id bigint, timeout interval DEFAULT NULL,
    INOUT state mill.run_state DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
    give_up_at timestamptz := pg_catalog.clock_timestamp() + timeout;
    pause double precision := 0.01;
    open_task text;
BEGIN
    LOOP
        -- As in mill.wait.
        COMMIT;
        SELECT r.state INTO state FROM mill.runs r WHERE r.id = run_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no run %', run_id USING ERRCODE = '22023',
                HINT = 'A run exists for others when the transaction that started it has committed.';
        END IF;
        EXIT WHEN state::text <> 'running';
        IF pg_catalog.clock_timestamp() >= give_up_at THEN
            SELECT t.name INTO open_task FROM mill.run_tasks t
                WHERE t.run_id = wait_run.run_id AND t.state::text IN ('released', 'ready', 'waiting')
                ORDER BY t.state DESC, t.node LIMIT 1;
            RAISE EXCEPTION 'run % has not ended within %', run_id, timeout USING ERRCODE = '57014',
                DETAIL = coalesce(pg_catalog.format('why task "%s" has not: %s', open_task,
                    mill.why(run_id, open_task)), ''), HINT = 'The run stays in progress.';
        END IF;
        PERFORM pg_catalog.pg_sleep(pause);
        pause := LEAST(pause + pause, 0.64);
    END LOOP;
END
$$;
COMMENT ON PROCEDURE mill.wait_run IS
    'Waits until a run has ended, and returns its state. After timeout (null: never), raises an error that says why a '
    'task of the run has not ended. Commits between its looks, so it cannot be called inside a transaction block';
GRANT EXECUTE ON PROCEDURE mill.wait_run TO mill_viewer;

-- schema/46_why.sql -------------------------------------------------------------------------------

-- Why: one sentence about a task or a run.
--
-- Why a task, also one of a run, is not running, or what it is doing; how far a run is, or how it has
-- ended.
--
-- The functions see every row, regardless of their caller, and show messages only if settings.hide_statements
-- is not set.

-- A SECURITY DEFINER function cannot determine its caller, so the setting hides messages from every
-- caller.
CREATE OR REPLACE FUNCTION mill.visible_message(message text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT message FROM mill.settings s WHERE NOT s.hide_statements
$$;
COMMENT ON FUNCTION mill.visible_message IS
    'Returns the message, or null if settings.hide_statements is set, for mill.why';

CREATE OR REPLACE FUNCTION mill.why_blocked(task mill.tasks) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    terms record;
    period record;
    subject text;
    idle bigint;
    holder bigint;
    ahead bigint;
    reported text;
BEGIN
    SELECT l.* INTO terms FROM mill.limit_status l WHERE l.id = task.blocking_limit_id;
    IF NOT FOUND THEN
        SELECT NULL::bigint AS id, CASE WHEN g.name IS NULL THEN 'key' ELSE 'group' END::mill.limit_kind AS kind,
                coalesce(g.name, task.concurrency_key) AS name,
                CASE WHEN g.name IS NULL THEN 0 ELSE coalesce(task.run_id, 0) END AS run_id,
                coalesce(g.max_running = 0, false) AS paused, g.opens, g.closes, g.zone, 0 AS running,
                NULL::integer AS max_running, NULL::integer AS rate_starts
            INTO terms FROM (SELECT) AS one LEFT JOIN mill.groups g ON g.name = task.group_name
                AND (task.concurrency_key IS NULL OR task.limits[1] <> task.blocking_limit_id);
    END IF;
    SELECT count(*) INTO ahead FROM (SELECT FROM mill.tasks t
        WHERE t.state = 'blocked' AND t.blocking_limit_id = task.blocking_limit_id AND t.priority = task.priority
            AND t.id < task.id LIMIT 100000) AS before;
    IF terms.kind = 'crash' THEN
        RETURN format('it ran when the server crashed at %s, and such tasks run one at a time, until an attempt of '
            'each has ended; tasks ahead with the same priority: %s', (SELECT date_trunc('second', s.crashed_at)
                FROM mill.server s), CASE ahead WHEN 100000 THEN 'at least ' ELSE '' END || ahead);
    END IF;
    subject := format('%s "%s"%s', CASE terms.kind WHEN 'key' THEN 'concurrency key' ELSE terms.kind::text END,
        terms.name, CASE WHEN terms.run_id <> 0 THEN format(' in run %s', terms.run_id) ELSE '' END);
    SELECT a.* INTO period FROM mill.active_period(terms.opens, terms.closes, terms.zone, now()) AS a;
    IF terms.paused THEN
        -- A queue can also be paused with mill.pause, so this message does not say that the queue is
        -- paused.
        RETURN format(CASE terms.kind WHEN 'queue' THEN '%s has max_running 0' ELSE '%s is paused' END, subject);
    ELSIF NOT period.open THEN
        RETURN format('%s is outside its active period (%s to %s, %s) until %s', subject,
            to_char(terms.opens, 'HH24:MI'), to_char(terms.closes, 'HH24:MI'), terms.zone,
            date_trunc('second', period.until));
    ELSIF terms.running >= terms.max_running THEN
        -- As in mill.revoke_permits, the CTE probes permits_limit.
        WITH granted AS MATERIALIZED (
            SELECT p.task_id, p.counts_until FROM mill.permits p WHERE p.limit_id = terms.id
        )
        SELECT count(*), min(t.id) INTO idle, holder FROM granted g JOIN mill.tasks t ON t.id = g.task_id
            WHERE g.counts_until IS NULL AND t.state <> 'running';
        -- A task that holds a permit may wait for something else. Its answer may be that of a later limit, so at most
        -- three answers are nested.
        RETURN format('%s has %s of %s tasks running%s; tasks ahead with the same priority: %s%s', subject,
            terms.running - idle, terms.max_running,
            CASE WHEN idle > 0 THEN format('; tasks that wait hold %s (task %s: %s)', CASE idle WHEN 1 THEN 'a permit'
                ELSE idle || ' permits' END, holder, mill.why_task(holder)) ELSE '' END,
            CASE ahead WHEN 100000 THEN 'at least ' ELSE '' END, ahead);
    ELSIF terms.rate_starts IS NOT NULL THEN
        RETURN format('%s allows %s per %s; tasks ahead with the same priority: %s%s', subject,
            CASE terms.rate_starts WHEN 1 THEN '1 start' ELSE terms.rate_starts || ' starts' END, terms.rate_period,
            CASE ahead WHEN 100000 THEN 'at least ' ELSE '' END, ahead);
    END IF;
    SELECT w.error INTO reported FROM mill.workers w
        WHERE starts_with(w.error, 'grant_permits: ') AND now() - w.heartbeat_at < w.orphan_timeout LIMIT 1;
    RETURN format(CASE WHEN terms.id IS NULL THEN 'it waits until a worker has created the limit of %s, which another '
            'transaction may be creating or removing' ELSE 'it is about to get a permit of %s' END, subject)
        || coalesce(', but a worker reports the error ' || reported, '');
END
$$;
COMMENT ON FUNCTION mill.why_blocked IS 'Returns the answer of mill.why for a task that waits for a permit';

CREATE OR REPLACE FUNCTION mill.with_lateness(sentence text, run_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sentence || coalesce((SELECT format('; its run %s has been late since %s', r.id,
            date_trunc('second', r.late_since)) FROM mill.late_runs r WHERE r.id = with_lateness.run_id), '')
$$;
COMMENT ON FUNCTION mill.with_lateness IS
    'Returns the sentence, and since when the run is late if it is in progress and late, for mill.why';

CREATE OR REPLACE FUNCTION mill.why_running(task mill.tasks) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    place text;
    backend record;
    reported text;
BEGIN
    SELECT s.host || ':' || s.pid INTO place
        FROM mill.worker_starts s WHERE s.id = task.claimed_by;
    place := coalesce(place, left(task.claimed_by::text, 8));
    SELECT b.* INTO backend FROM mill.backends() b
        WHERE b.pid = task.session_pid AND task.receipt IS NULL;
    IF task.receipt IS NOT NULL THEN
        place := format('%s in target "%s"', place, task.run_as);
    END IF;
    IF EXISTS (SELECT FROM mill.cancel_requests r WHERE r.task_id = task.id) THEN
        RETURN format('it is running on %s and about to be cancelled', place);
    ELSIF NOT EXISTS (SELECT FROM mill.workers w WHERE w.id = task.claimed_by
        AND now() - w.heartbeat_at < w.orphan_timeout)
    THEN
        RETURN format('its worker %s has stopped sending heartbeats; the task is about to be reclaimed%s', place,
            CASE WHEN task.receipt IS NOT NULL THEN format(', when target "%s" has answered whether it has '
                'committed', task.run_as) END);
    END IF;
    SELECT w.error INTO reported FROM mill.workers w
        WHERE w.id = task.claimed_by AND w.error LIKE format('%% of task %s: %%', task.id);
    IF FOUND THEN
        RETURN format('its statement has %s, but worker %s fails again and again: %s',
            CASE WHEN starts_with(reported, 'loading') THEN 'not started' ELSE 'ended' END, place, reported);
    ELSIF cardinality(backend.blocked_by) > 0 THEN
        RETURN format('it is running on %s since %s, blocked by backend %s', place,
            date_trunc('second', task.claimed_at), (SELECT string_agg(format('%s (%s)', b->>'pid',
                coalesce('task ' || (b->>'task_id'), concat_ws(', ', nullif(b->>'application', ''),
                    'user ' || (b->>'user'), b->>'state'))), ', ')
                FROM jsonb_array_elements(backend.blockers) AS b));
    END IF;
    RETURN format('it is running on %s since %s%s%s', place, date_trunc('second', task.claimed_at),
        CASE WHEN EXISTS (SELECT FROM mill.crash_suspects s WHERE s.id = task.id)
            THEN ', alone among the tasks that ran when the server crashed' END,
        CASE WHEN backend.wait_event_type <> 'Client'
            THEN format(', waiting for %s: %s', backend.wait_event_type, backend.wait_event) END);
END
$$;
COMMENT ON FUNCTION mill.why_running IS 'Returns the answer of mill.why for a running task';

CREATE OR REPLACE FUNCTION mill.why_unclaimed(task mill.tasks) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    serving record;
    unconnected text;
    ahead bigint;
    kept bigint;
    reported text;
BEGIN
    SELECT count(*) AS workers, coalesce(sum((w.profiles->>task.run_as::text)::integer), 0) AS readers,
        bool_and(w.draining) AS draining, sum(u.failed) AS failed, min(u.login) AS login, min(u.error) AS error,
        (SELECT count(DISTINCT t.session_pid) FROM mill.tasks t
            WHERE t.state = 'running' AND t.run_as = task.run_as AND t.claimed_by = ANY (array_agg(w.id))) AS busy
        INTO serving
        FROM mill.workers w LEFT JOIN LATERAL jsonb_to_recordset(w.unconnected)
            AS u(profile text, failed integer, login text, error text) ON u.profile = task.run_as
        WHERE (w.queues IS NULL OR task.queue = ANY (w.queues)) AND w.profiles ? task.run_as
            AND now() - w.heartbeat_at < w.orphan_timeout;
    IF serving.workers = 0 THEN
        RETURN format('no live worker serves queue "%s"%s', task.queue,
            CASE WHEN task.run_as <> '' THEN format(' and has the profile "%s" in its configuration', task.run_as) END);
    ELSIF serving.draining THEN
        RETURN format('every worker that serves queue "%s" is draining', task.queue);
    ELSIF task.state = 'scheduled' THEN
        RETURN 'it is due and about to become pending';
    END IF;
    IF serving.failed > 0 THEN
        unconnected := format('%s of %s readers of login %s%s cannot connect: %s', serving.failed, serving.readers,
            serving.login, CASE WHEN task.run_as <> '' THEN format(' (profile %s)', task.run_as) END, serving.error);
        serving.readers := serving.readers - serving.failed;
    END IF;
    SELECT count(*) INTO ahead FROM (SELECT FROM mill.tasks t
        WHERE t.state = 'pending' AND t.queue = task.queue AND t.priority = task.priority
            AND t.id < task.id LIMIT 100000) AS before;
    -- Readers that are reserved for tasks of priority reserved do not run other tasks.
    IF task.priority <> 'reserved' THEN
        SELECT coalesce(sum(r.reserved), 0) INTO kept
            FROM mill.workers w JOIN mill.reserved_by_profile() r ON r.worker_id = w.id
            WHERE (w.queues IS NULL OR task.queue = ANY (w.queues)) AND r.profile = task.run_as
                AND now() - w.heartbeat_at < w.orphan_timeout;
        IF kept > 0 AND serving.busy < serving.readers AND serving.readers - kept <= serving.busy THEN
            RETURN format('readers that serve queue "%3$s": %1$s of %2$s are '
                'kept for reserved tasks, the others are busy',
                kept, serving.readers, task.queue);
        END IF;
    END IF;
    SELECT min(w.error) INTO reported FROM mill.workers w
        WHERE w.profiles ? task.run_as AND now() - w.heartbeat_at < w.orphan_timeout
        HAVING bool_and(w.error LIKE format('targets: target %s: %%', task.run_as));
    IF task.receipt IS NOT NULL AND reported IS NOT NULL THEN
        RETURN format('no worker reaches its target: %s', substr(reported, 10));
    END IF;
    SELECT min(w.error) INTO reported FROM mill.workers w
        WHERE (w.queues IS NULL OR task.queue = ANY (w.queues)) AND w.profiles ? task.run_as
            AND now() - w.heartbeat_at < w.orphan_timeout
        HAVING bool_and(starts_with(w.error, 'claims: '));
    IF reported IS NOT NULL THEN
        RETURN format('no worker that serves queue "%s" can claim tasks: %s', task.queue, substr(reported, 9));
    ELSIF serving.readers <= 0 AND unconnected IS NOT NULL THEN
        RETURN unconnected;
    ELSIF serving.busy < serving.readers THEN
        RETURN format('it is about to be claimed; idle readers that serve queue "%3$s": %1$s of %2$s',
            serving.readers - serving.busy, serving.readers, task.queue) || coalesce('; ' || unconnected, '');
    END IF;
    RETURN format('all readers (%s) that serve queue "%s" are busy; tasks ahead with the same priority: %s%s',
        serving.readers, task.queue, CASE ahead WHEN 100000 THEN 'at least ' ELSE '' END, ahead)
        || coalesce('; ' || unconnected, '');
END
$$;
COMMENT ON FUNCTION mill.why_unclaimed IS
    'Returns the answer of mill.why for a task that only waits for a worker: no worker serves it, the readers are '
    'busy, or its claim fails';

CREATE OR REPLACE FUNCTION mill.why_task(id bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    last_attempt mill.attempts;
    pause text := mill.describe_fleet_pause();
BEGIN
    SELECT t.* INTO task FROM mill.tasks t WHERE t.id = why_task.id;
    SELECT a.* INTO last_attempt FROM mill.attempts a
        WHERE a.task_id = why_task.id ORDER BY a.finished_at DESC LIMIT 1;
    IF task.id IS NULL THEN
        IF last_attempt.task_id IS NULL THEN
            RETURN NULL;
        END IF;
        RETURN format('it is finished: %s at %s%s', last_attempt.outcome,
            date_trunc('second', last_attempt.finished_at),
            CASE WHEN last_attempt.started_at IS NOT NULL
                THEN format(' on attempt %s', last_attempt.attempt) ELSE '' END
            || coalesce(': ' || mill.visible_message(last_attempt.message), ''));
    END IF;
    IF task.state = 'running' THEN
        RETURN mill.why_running(task);
    ELSIF pause IS NOT NULL AND (task.state <> 'scheduled' OR task.due_at <= now()) THEN
        RETURN pause;
    ELSIF task.state = 'scheduled' AND task.due_at > now() THEN
        IF task.attempt > 0 AND last_attempt.task_id IS NOT NULL THEN
            RETURN format('attempt %s ended as %s (%s); the next one is due at %s, in %s',
                last_attempt.attempt, last_attempt.outcome,
                coalesce(mill.visible_message(last_attempt.message), last_attempt.sqlstate, 'no message'),
                date_trunc('second', task.due_at), date_trunc('second', task.due_at - now()));
        END IF;
        RETURN format('it is due at %s, in %s', date_trunc('second', task.due_at),
            date_trunc('second', task.due_at - now()));
    ELSIF EXISTS (SELECT FROM mill.queues q WHERE q.name = task.queue AND q.paused) THEN
        RETURN format('queue "%s" is paused', task.queue);
    ELSIF EXISTS (SELECT FROM mill.queues q WHERE q.name = task.queue AND q.held_back IS NOT NULL) THEN
        RETURN (SELECT format('queue "%s" is held back: %s', q.name, q.held_back) FROM mill.queues q
            WHERE q.name = task.queue);
    ELSIF EXISTS (SELECT FROM mill.target_checks c WHERE c.name = task.run_as AND c.held_back IS NOT NULL) THEN
        RETURN (SELECT format('target "%s" is held back: %s', c.name, c.held_back) FROM mill.target_checks c
            WHERE c.name = task.run_as);
    ELSIF task.state = 'blocked' THEN
        RETURN mill.why_blocked(task);
    END IF;
    RETURN mill.why_unclaimed(task);
END
$$;
COMMENT ON FUNCTION mill.why_task IS 'Returns the answer of mill.why(bigint), without the lateness of a run';

CREATE OR REPLACE FUNCTION mill.why(id bigint) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.with_lateness(mill.why_task(id), (SELECT t.run_id FROM mill.tasks t WHERE t.id = why.id))
$$;
COMMENT ON FUNCTION mill.why(bigint) IS
    'Returns one sentence: why this task is not running, or what it is doing; null if the task does not exist';
GRANT EXECUTE ON FUNCTION mill.why(bigint) TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.why_run_task(run_id bigint, task text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_task mill.run_tasks;
    run mill.runs;
    parents text;
    causes text;
    indirect boolean;
BEGIN
    SELECT t.* INTO found_task FROM mill.run_tasks t WHERE t.run_id = why_run_task.run_id AND t.name = task;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = why_run_task.run_id;
    IF found_task.state = 'released' THEN
        RETURN coalesce(mill.why_task(found_task.task_id), 'it has just finished');
    ELSIF found_task.state = 'ready' AND found_task.approval THEN
        RETURN format('it waits for approval since %s%s', date_trunc('second', found_task.approval_since),
            ': ' || found_task.approval_note);
    ELSIF found_task.state = 'ready' THEN
        RETURN 'it is ready and about to be put into the queue';
    ELSIF found_task.state = 'cancelled' AND NOT found_task.approved THEN
        RETURN coalesce('it was ' || mill.visible_message(found_task.message), 'it was rejected');
    ELSIF found_task.state = 'cancelled' AND found_task.started_at IS NULL THEN
        RETURN format('it was cancelled before it started%s',
            coalesce(' by ' || run.cancelled_by, ': its run ' || run.cancel_reason));
    ELSIF found_task.state NOT IN ('waiting', 'upstream_failed', 'skipped') THEN
        RETURN format('it is finished: %s at %s%s%s', found_task.outcome, date_trunc('second', found_task.finished_at),
            CASE WHEN found_task.state = 'failed' AND found_task.ignore_failure THEN ', ignored' ELSE '' END,
            ': ' || mill.visible_message(found_task.message));
    END IF;
    -- The first ten parents that prevent the task from running.
    SELECT string_agg(format('%s (%s, expected %s)', p.name, CASE WHEN p.asks THEN 'needs approval'
                ELSE p.state::text END, p.expected), ', '),
            bool_or(p.state IN ('upstream_failed', 'skipped')) INTO parents, indirect FROM (
        SELECT t.name, t.state, e.expected, t.state = 'ready' AND t.approval AS asks
        FROM mill.run_edges e
            JOIN mill.run_tasks t ON t.run_id = e.run_id AND t.node = e.parent
        WHERE e.run_id = why_run_task.run_id AND e.child = found_task.node AND CASE found_task.state
            WHEN 'waiting' THEN t.state IN ('waiting', 'ready', 'released')
            ELSE NOT mill.satisfies(t.state, e.expected) END
        ORDER BY t.node LIMIT 10) AS p;
    IF found_task.state <> 'waiting' THEN
        -- Tasks further up whose end is the cause, if the parents could not run either.
        WITH RECURSIVE up (node, state) AS (
            SELECT found_task.node, found_task.state
            UNION
            SELECT p.node, p.state
            FROM up u JOIN mill.run_edges e ON e.run_id = why_run_task.run_id AND e.child = u.node
                JOIN mill.run_tasks p ON p.run_id = e.run_id AND p.node = e.parent
            WHERE u.state IN ('upstream_failed', 'skipped') AND NOT mill.satisfies(p.state, e.expected)
        )
        SELECT string_agg(format('%s (%s)', c.name, concat_ws(': ', c.state, mill.visible_message(c.message))), ', '
                ORDER BY c.node) INTO causes
            FROM (SELECT t.* FROM up u JOIN mill.run_tasks t ON t.run_id = why_run_task.run_id AND t.node = u.node
                WHERE u.state NOT IN ('upstream_failed', 'skipped') ORDER BY t.node LIMIT 10) AS c;
        RETURN format('it %s because of its parents: %s%s',
            CASE found_task.state WHEN 'skipped' THEN 'is skipped' ELSE 'cannot run' END, parents,
            CASE WHEN indirect THEN '; cause: ' || causes END);
    ELSIF run.cancelled_at IS NOT NULL THEN
        RETURN 'its run is being cancelled';
    END IF;
    RETURN format('it waits for %s%s', CASE WHEN found_task.join_mode = 'any' THEN 'one of ' ELSE '' END,
        coalesce(parents, 'parents that have just finished'))
        || CASE WHEN found_task.parents - found_task.satisfied - found_task.unsatisfied > 10
            THEN format(' and others, %s in total', found_task.parents - found_task.satisfied - found_task.unsatisfied)
            ELSE '' END;
END
$$;
COMMENT ON FUNCTION mill.why_run_task IS
    'Returns the answer of mill.why(bigint, text), without the lateness of the run';

CREATE OR REPLACE FUNCTION mill.why(run_id bigint, task text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM mill.run_tasks t WHERE t.run_id = why.run_id AND t.name = task
            AND t.finished_at IS NULL) THEN mill.with_lateness(mill.why_run_task(run_id, task), run_id)
        ELSE mill.why_run_task(run_id, task) END
$$;
COMMENT ON FUNCTION mill.why(bigint, text) IS
    'Returns one sentence: why this task of a run is not running, or how it ended; null if the task does not exist';
GRANT EXECUTE ON FUNCTION mill.why(bigint, text) TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.why_run(run_id bigint) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run mill.runs;
    counts record;
    sentence text;
BEGIN
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = why_run.run_id;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- Counts of an ended run are in its row; the names are those of the first three tasks that explain its state.
    SELECT count(*) AS tasks, count(*) FILTER (WHERE t.state IN ('waiting', 'ready', 'released')) AS open,
            count(*) FILTER (WHERE t.state = 'released') AS released,
            (array_agg(format('%s waits for approval since %s', t.name, date_trunc('second', t.approval_since))
                ORDER BY t.approval_since) FILTER (WHERE t.state = 'ready' AND t.approval))[:3]
                AS asking,
            (array_agg(concat_ws(': ', t.name, mill.visible_message(t.message)) ORDER BY t.finished_at)
                FILTER (WHERE t.state::text = run.state::text AND NOT t.ignore_failure))[:3] AS causes
        INTO counts FROM mill.run_tasks t WHERE t.run_id = run.id;
    IF run.state = 'running' THEN
        sentence := concat_ws('; ', format('it is in progress since %s: %s of %s tasks have ended, %s in the queue or '
                'running', date_trunc('second', coalesce(run.restarted_at, run.started_at)),
                counts.tasks - counts.open, counts.tasks, counts.released),
            array_to_string(counts.asking, ', '),
            CASE WHEN run.cancelled_at IS NOT NULL THEN 'it is being cancelled'
                || coalesce(': ' || run.cancel_reason, ' by ' || run.cancelled_by, '') END,
            CASE WHEN run.late_at <= now()
                THEN format('it has been late since %s', date_trunc('second', run.late_at)) END,
            CASE WHEN run.cancelled_at IS NULL
                THEN 'its timeout is at ' || date_trunc('second', run.timeout_at) END);
        RETURN sentence || CASE WHEN run.cancelled_at IS NULL
            THEN coalesce('; ' || mill.describe_fleet_pause(), '') ELSE '' END;
    END IF;
    RETURN concat_ws('; ', format('it is finished: %s at %s', run.state, date_trunc('second', run.finished_at))
            || CASE WHEN run.cancelled_at IS NOT NULL
                THEN coalesce(': ' || run.cancel_reason, ' by ' || run.cancelled_by, '') ELSE '' END,
        CASE WHEN run.cancelled_at IS NULL AND run.state <> 'succeeded'
            THEN nullif(array_to_string(counts.causes, ', '), '') END,
        CASE WHEN run.late_since IS NOT NULL
            THEN format('it was late, its deadline was %s', date_trunc('second', run.late_since)) END);
END
$$;
COMMENT ON FUNCTION mill.why_run IS
    'Returns one sentence about a run: how far it is and what it waits for, or how it has ended; null if it does not '
    'exist';
GRANT EXECUTE ON FUNCTION mill.why_run TO mill_viewer;

-- schema/47_grants.sql ----------------------------------------------------------------------------

-- Privileges on all objects, and the end of the transaction.
--
-- Privileges on a single object are granted where the object is created.
--
-- PUBLIC may use the schema and execute the functions that complete a task, which require the token of a
-- claim and its session. PostgreSQL lets everybody execute a new function, so this REVOKE follows all
-- functions, and the grants of these follow the REVOKE.
--
-- mill_viewer reads the tables and views, with three exceptions. Nobody reads tokens and the keys of
-- profiles. Statements and their output are readable for mill_operator only, and for mill_viewer through
-- the visible_* views. The partitions of mill.attempts are readable through mill.attempts only.

-- PUBLIC may complete a claim of its own session whose token the caller knows, and nothing else.
GRANT USAGE ON SCHEMA mill TO PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA mill FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA mill FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mill.complete, mill.complete_with_proof TO PUBLIC;

GRANT SELECT ON ALL TABLES IN SCHEMA mill TO mill_viewer;
-- Whoever knows the token of a running task can complete the task, and whoever knows the key of a
-- profile can use the profile. Therefore no role can read them. The receipt of a live task allows its
-- login in the target to complete the task there.
DO $$
DECLARE
    kept record;
    open text;
BEGIN
    -- A partition of mill.attempts is a table of its own, on which the list below restricts no column. To read
    -- mill.attempts, no privilege on its partitions is needed.
    FOR kept IN SELECT c.relname AS name FROM pg_class c
        WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind = 'r'
            AND (c.relispartition OR c.relname ~ '^attempts_[0-9]{8}$')
    LOOP
        EXECUTE format('REVOKE ALL ON mill.%I FROM mill_viewer', kept.name);
    END LOOP;
    FOR kept IN SELECT * FROM (VALUES
        ('tasks', ARRAY['token', 'receipt'], ARRAY['statement', 'params']),
        ('attempts', ARRAY['token'],
            ARRAY['receipt', 'statement', 'params', 'notices', 'result', 'plan', 'message', 'detail', 'hint',
                'context']),
        ('job_tasks', '{}', ARRAY['statement', 'params']),
        ('job_versions', '{}', ARRAY['definition']),
        ('run_tasks', '{}', ARRAY['statement', 'params', 'result', 'message']),
        ('run_events', '{}', ARRAY['result', 'message']),
        ('progress', '{}', ARRAY['percent', 'message', 'notices']),
        ('runs', '{}', ARRAY['params']),
        ('schedules', '{}', ARRAY['params', 'definition', 'timing', 'new_timing', 'new_timing_error', 'trigger',
            'trigger_result', 'error']),
        ('backfills', '{}', ARRAY['params', 'error']),
        ('schedule_log', '{}', ARRAY['message']),
        ('subscriptions', '{}', ARRAY['statement']),
        ('notifications', '{}', ARRAY['document']),
        ('profiles', ARRAY['key'], '{}')) AS t(name, from_all, from_viewers)
    LOOP
        SELECT string_agg(quote_ident(a.attname), ', ') INTO open FROM pg_attribute a
            WHERE a.attrelid = format('mill.%I', kept.name)::regclass AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attname <> ALL (kept.from_all || kept.from_viewers);
        EXECUTE format('REVOKE SELECT ON mill.%I FROM mill_viewer', kept.name);
        EXECUTE format('GRANT SELECT (%s) ON mill.%I TO mill_viewer', open, kept.name);
        IF kept.from_viewers <> '{}' THEN
            EXECUTE format('GRANT SELECT (%s) ON mill.%I TO mill_operator',
                array_to_string(kept.from_viewers, ', '), kept.name);
        END IF;
    END LOOP;
END
$$;

COMMIT;

-- schema/48_statistics.sql ------------------------------------------------------------------------

-- ANALYZE of tables that hold rows and have no statistics.
--
-- After the installation, a restore, or pg_upgrade before 18.
--
-- The statements of the fleet do not depend on statistics, but the first autovacuum can be far away. This runs after
-- the transaction of the schema, because the fleet would wait for the locks of that transaction while samples are
-- read. A table with statistics is left alone, so another call costs nothing, and so is a table that another session
-- has locked, such as an autovacuum. An empty table is left alone, too: the planner expects ten pages in a table
-- that was never analyzed, and none in one that was empty.

DO $$
DECLARE
    found record;
BEGIN
    PERFORM set_config('role', 'mill_owner', true), set_config('client_min_messages', 'error', true),
        set_config('search_path', 'pg_catalog', true);
    FOR found IN SELECT c.relname AS name FROM pg_class c
        WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind = 'r' AND c.reltuples <> 0
            AND pg_relation_size(c.oid) > 0
            AND NOT EXISTS (SELECT FROM pg_stats s WHERE s.schemaname = 'mill' AND s.tablename = c.relname)
        ORDER BY c.relname
    LOOP
        EXECUTE format('ANALYZE (SKIP_LOCKED) mill.%I', found.name);
    END LOOP;
END
$$;
