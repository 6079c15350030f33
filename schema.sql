-- pgmill: the contract between enqueue, worker and psql.
--
-- Apply with `psql -f schema.sql` or `pgmill init`, as superuser or as a role with CREATEROLE and
-- CREATE on the database. Running it again changes nothing.
--
-- In the order of a task's way:
--   settings, priorities, queues, groups, limits    what an operator decides
--   audit                       who did what
--   tasks                       live tasks only; a finished task leaves the table
--   dedup_keys                  one live task per key
--   enqueue, enqueue_many       -> scheduled | blocked | pending
--   grant, reconcile_limits             blocked <-> pending, by permits
--   (claim)                     pending -> running      queue/src/claim.rs
--   complete                    running -> finished     in the task's own transaction
--   fail, release_claim, reclaim    running -> scheduled | blocked | pending | finished
--   cancel, retry               what a person says about one task
--   attempts                    one row per finished attempt, a partition per day
--   jobs, dependencies          graphs of tasks: what waits for what
--   start_run, advance_run      a frozen copy of jobs, and its tasks into mill.tasks when they are ready
--   schedules                   when jobs run by themselves
--   lock_due_schedules, tick        a fire is a run with a schedule and an instant: once, whoever ticks
--   workers, worker_starts      who is alive, who ever was
--   running, queue_status, history, why    what a person reads
--   scale_hint                  what a scaler of workers reads
--   roles                       who may do what
--
-- Every name is qualified and search_path is pg_catalog throughout, so that nothing a caller puts
-- in front can be picked up instead.

BEGIN;

SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog;

DO $$
DECLARE
    found integer;
BEGIN
    -- Two sessions that apply this file take turns.
    PERFORM pg_advisory_xact_lock(7236270911);
    IF to_regclass('mill.schema_version') IS NOT NULL THEN
        EXECUTE 'SELECT version FROM mill.schema_version' INTO found;
        IF found <> 1 THEN
            RAISE EXCEPTION 'this database holds version % of the schema, this file is version 1', found
                USING HINT = CASE WHEN found < 1
                    THEN format('Bring it forward with pgmill init, which applies migrations/%s_*.sql to '
                        'migrations/%s_*.sql of your version of pgmill; pgmill init --dry-run prints them for psql.',
                        lpad((found + 1)::text, 3, '0'), lpad(1::text, 3, '0'))
                    ELSE 'Use the schema.sql that belongs to your version of pgmill.' END;
        END IF;
    END IF;
END
$$;

-- Roles ------------------------------------------------------------------------------------------

DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY
        ARRAY['mill_owner', 'mill_worker', 'mill_operator', 'mill_producer', 'mill_viewer']
    LOOP
        IF to_regrole(role_name) IS NULL THEN
            -- Roles belong to the cluster: another database may get its schema at this moment. Then this
            -- waits until that is done.
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    IF NOT pg_has_role('mill_operator', 'mill_viewer', 'MEMBER')
        OR NOT pg_has_role('mill_operator', 'mill_producer', 'MEMBER')
    THEN
        GRANT mill_viewer, mill_producer TO mill_operator;
    END IF;
    -- A superuser may act as every role already. From PostgreSQL 16 on, who makes a role becomes a
    -- member that may grant it, and still may not act as it.
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
    -- The reclaimer looks for the backends of a dead worker and ends them; the owner's functions
    -- show what the backend of a running task waits for. A role that may not grant this (PostgreSQL
    -- 16 and later ask for ADMIN OPTION) goes on without, and `pgmill doctor` says what is missing.
    IF NOT pg_has_role('mill_worker', 'pg_read_all_stats', 'MEMBER')
        OR NOT pg_has_role('mill_worker', 'pg_signal_backend', 'MEMBER')
        OR NOT pg_has_role('mill_owner', 'pg_read_all_stats', 'MEMBER')
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
SET LOCAL ROLE mill_owner;
COMMENT ON SCHEMA mill IS 'pgmill: a fleet that runs SQL';

-- Types ------------------------------------------------------------------------------------------

DO $$
BEGIN
    IF to_regtype('mill.state') IS NULL THEN
        CREATE TYPE mill.state AS ENUM ('scheduled', 'blocked', 'pending', 'running');
        CREATE TYPE mill.outcome AS ENUM
            ('succeeded', 'failed', 'cancelled', 'timed_out', 'lost', 'unknown');
        CREATE TYPE mill.priority AS ENUM ('low', 'normal', 'high', 'critical', 'reserved');
        CREATE TYPE mill.mode AS ENUM ('transaction', 'autocommit');
        CREATE TYPE mill.backoff AS ENUM ('fixed', 'exponential');
        CREATE TYPE mill.limit_kind AS ENUM ('key', 'group', 'queue');
        CREATE TYPE mill.reserved_capacity AS ENUM ('none', 'low', 'medium', 'high');
        CREATE TYPE mill.expected AS ENUM ('succeeded', 'failed', 'finished');
        CREATE TYPE mill.join_mode AS ENUM ('all', 'any');
        CREATE TYPE mill.run_state AS ENUM ('running', 'succeeded', 'failed', 'cancelled');
        CREATE TYPE mill.run_task_state AS ENUM
            ('waiting', 'ready', 'released', 'succeeded', 'failed', 'cancelled', 'upstream_failed');
        CREATE TYPE mill.fire_mode AS ENUM ('manual', 'scheduled', 'triggered');
        CREATE TYPE mill.overlap AS ENUM ('skip', 'queue', 'allow');
        CREATE TYPE mill.declared_in AS ENUM ('comment', 'file', 'call');
        CREATE TYPE mill.schedule_event AS ENUM
            ('fired', 'skipped', 'completed', 'error', 'missed', 'reclaimed');
        -- Domains and not checks of the table: those would be parsed and run again by every claim,
        -- a third of its time.
        CREATE DOMAIN mill.queue_name AS text CONSTRAINT queue_name CHECK (
            octet_length(VALUE) BETWEEN 1 AND 128 AND ltrim(VALUE,
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
        -- What lies outside has no place in the programs' calendars.
        CREATE DOMAIN mill.due_time AS timestamptz CONSTRAINT due_at_range
            CHECK (VALUE BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-30 22:00:00+00');
    END IF;
END
$$;
COMMENT ON DOMAIN mill.profile_name IS 'Name of a profile: letters, digits and _ . : -, up to 63; empty: the login of all tasks that name none';
COMMENT ON DOMAIN mill.queue_name IS 'Name of a queue: letters, digits and _ . : -, 1 to 128';
COMMENT ON DOMAIN mill.label IS 'Name or deduplication key of a task, 1 to 512 bytes';
COMMENT ON DOMAIN mill.statement IS 'SQL of a task, not empty';
COMMENT ON DOMAIN mill.attempt_limit IS 'How many attempts may fail, 1 to 10000';
COMMENT ON DOMAIN mill.attempt_count IS 'How many attempts there were';
COMMENT ON DOMAIN mill.retry_interval IS 'Wait before the next attempt, up to 365 days';
COMMENT ON DOMAIN mill.time_limit IS 'How long an attempt may run, up to 365 days';
COMMENT ON DOMAIN mill.due_time IS 'When a task is due, within the years 1 to 9999';

COMMENT ON TYPE mill.state IS 'States of a live task: scheduled (not due), blocked (waits for a permit), pending, running';
COMMENT ON TYPE mill.outcome IS 'How an attempt ended: lost = its worker died; unknown = an at-most-once statement whose end nobody saw';
COMMENT ON TYPE mill.priority IS 'Priorities, lowest first';
COMMENT ON TYPE mill.mode IS 'transaction: the statement and its completion commit together (exactly once); autocommit: for VACUUM, CREATE INDEX CONCURRENTLY, CALL with COMMIT (at least once)';
COMMENT ON TYPE mill.limit_kind IS 'What a limit is set on, in the order in which a task acquires its permits: the most special first, so that who waits holds up nobody but its like';
COMMENT ON TYPE mill.reserved_capacity IS 'How many of the fleet''s readers serve reserved tasks only: none, 10, 15 or 25 percent';
COMMENT ON TYPE mill.expected IS 'What an edge expects of the parent: succeeded; failed (also timed out, lost, unknown); finished = either, or cancelled';
COMMENT ON TYPE mill.join_mode IS 'Whether a task waits for all its parents, or for any of them';
COMMENT ON TYPE mill.run_state IS 'States of a run: at its end cancelled if it was, else failed if a task failed whose failure counts, else succeeded';
COMMENT ON TYPE mill.run_task_state IS 'States of a task of a run: waiting (for parents), ready, released (in the queue or running), or how it ended; upstream_failed: its parents did not end as its edges expect';
COMMENT ON TYPE mill.fire_mode IS 'What makes a schedule fire: a person only (manual), the clock (scheduled), what is in a table (triggered)';
COMMENT ON TYPE mill.overlap IS 'A fire while a run of the schedule goes on: is skipped; waits, one of them, for the end of that run (queue); starts another run beside it (allow)';
COMMENT ON TYPE mill.declared_in IS 'Where a schedule is declared, which is where its timing is changed: the COMMENT of a procedure, a file, a call of mill.set_schedule';
COMMENT ON TYPE mill.schedule_event IS 'What happened to a schedule: completed = a run of it ended; missed = nobody ticked in time; reclaimed = the worker of a task of it died';
COMMENT ON TYPE mill.backoff IS 'How the wait before a retry grows: fixed, or doubled with each failure';

-- What an operator decides -----------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.schema_version (
    version integer NOT NULL,
    works_with integer NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    CONSTRAINT works_with_itself CHECK (works_with <= version)
);
COMMENT ON TABLE mill.schema_version IS 'The version of this schema; programs refuse one that they do not fit';
COMMENT ON COLUMN mill.schema_version.works_with IS 'Programs that were built for this version of the schema, or a later one, may use it';
INSERT INTO mill.schema_version (version, works_with) VALUES (1, 1) ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS mill.settings (
    statement_limit_bytes integer NOT NULL DEFAULT 16777216
        CHECK (statement_limit_bytes BETWEEN 1 AND 536870912),
    history_retention interval NOT NULL DEFAULT '30 days'
        CHECK (history_retention >= '1 day'),
    schedule_log_retention interval NOT NULL DEFAULT '30 days'
        CHECK (schedule_log_retention >= '1 day'),
    audit_retention interval NOT NULL DEFAULT '365 days'
        CHECK (audit_retention >= '1 day'),
    declaring_roles text[] NOT NULL DEFAULT '{}',
    hide_statements boolean NOT NULL DEFAULT false,
    max_crashes integer NOT NULL DEFAULT 5 CHECK (max_crashes BETWEEN 1 AND 100),
    reserved_capacity mill.reserved_capacity NOT NULL DEFAULT 'none',
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);
COMMENT ON TABLE mill.settings IS 'Settings of the whole fleet, one row: UPDATE mill.settings SET …';
COMMENT ON COLUMN mill.settings.statement_limit_bytes IS 'Longer statements are refused at enqueue';
COMMENT ON COLUMN mill.settings.history_retention IS 'Days of attempts older than this are dropped, a partition at a time';
COMMENT ON COLUMN mill.settings.schedule_log_retention IS 'Rows of mill.schedule_log older than this are deleted, some thousand at a time';
COMMENT ON COLUMN mill.settings.audit_retention IS 'Rows of mill.audit older than this are deleted, some ten thousand an hour';
COMMENT ON COLUMN mill.settings.declaring_roles IS 'Roles whose procedures may declare schedules in their comments, beside superusers and members of mill_operator: the code of these procedures runs under the login of the tasks';
COMMENT ON COLUMN mill.settings.hide_statements IS 'Who may only view sees no statement, no parameter, no result and nothing that a statement said: notices and messages';
COMMENT ON COLUMN mill.settings.max_crashes IS 'A task whose worker died this many times ends as lost';
COMMENT ON COLUMN mill.settings.reserved_capacity IS 'Share of the fleet''s readers that serve reserved tasks only: mill.set_reserved_capacity';
INSERT INTO mill.settings DEFAULT VALUES ON CONFLICT DO NOTHING;

-- Who did what. Written by the functions themselves, in their transaction: whoever acts from psql is on
-- record like anybody else, and what was rolled back is not.
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
COMMENT ON TABLE mill.audit IS 'What operators did, append-only, kept for settings.audit_retention';
COMMENT ON COLUMN mill.audit.login IS 'The login of the session: what the database knows';
COMMENT ON COLUMN mill.audit.role IS 'The role that it had taken by SET ROLE';
COMMENT ON COLUMN mill.audit.actor IS 'Who a program says that it acts for, by SET mill.actor: claimed, and not known';
COMMENT ON COLUMN mill.audit.action IS 'The function of schema mill; update_settings for a change of mill.settings';
COMMENT ON COLUMN mill.audit.subject IS 'What it was done to: task 42, queue etl, run 12, schedule nightly, …';
-- Who did this to that?
CREATE INDEX IF NOT EXISTS audit_subject ON mill.audit (subject, id);

CREATE OR REPLACE FUNCTION mill.record_audit(action text, subject text, detail jsonb DEFAULT NULL) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO mill.audit (action, subject, detail) VALUES (action, subject, nullif(detail, '{}'))
$$;
COMMENT ON FUNCTION mill.record_audit IS 'Part of what a person does: writes it to mill.audit. Open to nobody, so that nobody makes up acts';

CREATE OR REPLACE FUNCTION mill.record_settings() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.record_audit('update_settings', 'settings', (SELECT jsonb_object_agg(n.key, n.value)
        FROM jsonb_each(to_jsonb(new)) AS n WHERE n.value IS DISTINCT FROM to_jsonb(old)->n.key));
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mill.record_settings IS 'Trigger of mill.settings: what was changed, to what';
CREATE OR REPLACE TRIGGER record_settings AFTER UPDATE ON mill.settings
    FOR EACH ROW WHEN (old.* IS DISTINCT FROM new.*) EXECUTE FUNCTION mill.record_settings();

CREATE TABLE IF NOT EXISTS mill.priorities (
    priority mill.priority PRIMARY KEY,
    -- NaN and infinity are above every number here.
    weight double precision NOT NULL CHECK (weight >= 0 AND weight <= 1000000)
);
COMMENT ON TABLE mill.priorities IS 'Weight of each priority: of the tasks picked, its share while all priorities have work. A probability and not a rank';
COMMENT ON COLUMN mill.priorities.weight IS 'Relative to the others; 0 = only when no other has work';
INSERT INTO mill.priorities (priority, weight)
    VALUES ('low', 5), ('normal', 10), ('high', 15), ('critical', 30), ('reserved', 40)
    ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS mill.queues (
    name mill.queue_name PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false,
    shared_commit interval CHECK (shared_commit BETWEEN '1 millisecond' AND '100 milliseconds'),
    changed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE mill.queues IS 'Queues that somebody has set something on; a queue without a row has the defaults';
COMMENT ON COLUMN mill.queues.paused IS 'No task of a paused queue is claimed; running ones go on';
COMMENT ON COLUMN mill.queues.shared_commit IS 'How long a reader may go on taking short tasks of this queue into one transaction; null = each task commits alone';

CREATE TABLE IF NOT EXISTS mill.profiles (
    name mill.profile_name PRIMARY KEY CHECK (name <> ''),
    allowed text[] NOT NULL DEFAULT '{}',
    description text,
    key uuid NOT NULL UNIQUE DEFAULT gen_random_uuid()
);
COMMENT ON TABLE mill.profiles IS 'Logins that tasks may run as beside the one of all tasks. Workers have the connections in their configuration; here stands who may name them';
COMMENT ON COLUMN mill.profiles.allowed IS 'Roles whose members may enqueue tasks that run as this profile';
COMMENT ON COLUMN mill.profiles.key IS 'Proves to mill.submit that the caller may: a function that runs with its owner''s rights cannot ask who called it';

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
COMMENT ON TABLE mill.groups IS 'Tasks that belong together: default priority, concurrency within each run, active period';
COMMENT ON COLUMN mill.groups.priority IS 'Of tasks that name none themselves';
COMMENT ON COLUMN mill.groups.max_running IS 'Tasks of one run that may run at once: null = no limit, 0 = no task starts and running tasks finish. Tasks outside any run count as one run';
COMMENT ON COLUMN mill.groups.requires_permit IS 'Its tasks need a permit';
COMMENT ON COLUMN mill.groups.opens IS 'Time of day in zone from which on tasks may start; with closes before it the period goes over midnight';

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
    CONSTRAINT rate_whole
        CHECK (num_nonnulls(rate_starts, rate_period, window_starts, window_length) IN (0, 4)),
    UNIQUE (kind, name, run_id)
);
COMMENT ON TABLE mill.limits IS 'What limits tasks: a queue, a concurrency key, a group within one run. A task of a limit is blocked until it has a permit';
COMMENT ON COLUMN mill.limits.run_id IS 'Groups only: the run; 0 = tasks outside any run';
COMMENT ON COLUMN mill.limits.max_running IS 'Keys and queues: tasks that may run at once, null = no limit, 0 = no task starts. Groups: see mill.groups';
COMMENT ON COLUMN mill.limits.requires_permit IS 'Keys and queues: it says anything, so that new tasks need its permit';
COMMENT ON COLUMN mill.limits.rate_starts IS 'At most so many starts in any rate_period';
COMMENT ON COLUMN mill.limits.window_starts IS 'The same rate in the shortest windows that are as exact: at most so many starts in any window_length';

-- Live tasks -------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.tasks (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    -- Of the call and not of its transaction, which may have begun long before.
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at mill.due_time NOT NULL DEFAULT clock_timestamp(),
    claimed_at timestamptz,
    session_started_at timestamptz,
    claimed_by uuid,
    token uuid,
    retry_interval mill.retry_interval NOT NULL DEFAULT '10 seconds',
    timeout mill.time_limit,
    state mill.state NOT NULL DEFAULT 'pending',
    priority mill.priority NOT NULL DEFAULT 'normal',
    mode mill.mode NOT NULL DEFAULT 'transaction',
    backoff mill.backoff NOT NULL DEFAULT 'exponential',
    attempt mill.attempt_count NOT NULL DEFAULT 0,
    max_attempts mill.attempt_limit NOT NULL DEFAULT 3,
    failures mill.attempt_count NOT NULL DEFAULT 0,
    transient_failures mill.attempt_count NOT NULL DEFAULT 0,
    crashes mill.attempt_count NOT NULL DEFAULT 0,
    session_pid integer,
    jitter boolean NOT NULL DEFAULT true,
    at_most_once boolean NOT NULL DEFAULT false,
    external boolean NOT NULL DEFAULT false,
    explain boolean NOT NULL DEFAULT false,
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
    CONSTRAINT node_of_a_run CHECK (node IS NULL OR run_id IS NOT NULL),
    CONSTRAINT blocked_has_limit CHECK ((state = 'blocked') = (blocking_limit_id IS NOT NULL)),
    CONSTRAINT at_most_once_runs_once
        CHECK (NOT at_most_once OR (mode = 'autocommit' AND max_attempts = 1)),
    CONSTRAINT running_is_claimed CHECK (
        num_nonnulls(token, claimed_by, claimed_at, session_pid, session_started_at)
        = CASE WHEN state = 'running' THEN 5 ELSE 0 END),
    CONSTRAINT running_has_started CHECK (state <> 'running' OR attempt > 0)
) WITH (
    -- The hot table: vacuum by count, at full speed, and never take the lock that truncation needs.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off,
    -- A statement of any size goes out of row: the claim copies the row, not the statement.
    toast_tuple_target = 512
);
COMMENT ON TABLE mill.tasks IS 'Live tasks; a finished task leaves this table for mill.attempts';
COMMENT ON COLUMN mill.tasks.due_at IS 'Not claimed before this instant';
COMMENT ON COLUMN mill.tasks.token IS 'One per claim, random; every change of a running task names it';
COMMENT ON COLUMN mill.tasks.claimed_by IS 'The worker that holds the claim: workers.id';
COMMENT ON COLUMN mill.tasks.session_pid IS 'Backend of the reader that runs the statement; ended before the task is reclaimed';
COMMENT ON COLUMN mill.tasks.session_started_at IS 'backend_start of session_pid, which tells it from a later backend with that pid';
COMMENT ON COLUMN mill.tasks.attempt IS 'Number of the attempt that runs, or of the last one that ran';
COMMENT ON COLUMN mill.tasks.max_attempts IS 'Attempts that may fail before the task fails: total, not retries';
COMMENT ON COLUMN mill.tasks.failures IS 'Attempts that failed or timed out';
COMMENT ON COLUMN mill.tasks.transient_failures IS 'Attempts that ended by a serialization failure, a deadlock or a lost connection; they use up no attempt, up to a bound';
COMMENT ON COLUMN mill.tasks.crashes IS 'Attempts whose worker died; they use up no attempt, up to settings.max_crashes';
COMMENT ON COLUMN mill.tasks.jitter IS 'Wait a random part of the retry interval';
COMMENT ON COLUMN mill.tasks.at_most_once IS 'Autocommit only: an attempt whose end nobody saw ends as unknown and waits for a person';
COMMENT ON COLUMN mill.tasks.external IS 'Has effects outside this cluster: its claim is made durable before it starts';
COMMENT ON COLUMN mill.tasks.explain IS 'Its statement is run as EXPLAIN (ANALYZE, BUFFERS, WAL), and the plan kept in place of its rows';
COMMENT ON COLUMN mill.tasks.key IS 'Unique among live tasks, see mill.dedup_keys';
COMMENT ON COLUMN mill.tasks.concurrency_key IS 'Tasks with the same key run one at a time, or as many as its limit says';
COMMENT ON COLUMN mill.tasks.run_id IS 'The run that it belongs to, or counts with for the limit of its group';
COMMENT ON COLUMN mill.tasks.node IS 'Which task of the run it is: run_tasks.node';
COMMENT ON COLUMN mill.tasks.limits IS 'mill.limits.id of each permit that it needs, in the order in which it acquires them; null: none';
COMMENT ON COLUMN mill.tasks.blocking_limit_id IS 'Blocked: the limit that it waits for; it holds the permits of those before it';
COMMENT ON COLUMN mill.tasks.run_as IS 'Profile whose login it runs as; empty: the login of all tasks that name none';
COMMENT ON COLUMN mill.tasks.start_by IS 'Pending: the active period of its group closes then';
COMMENT ON COLUMN mill.tasks.params IS 'JSON array, bound as $1, $2, …';

-- queue/src/claim.rs: the head of each queue, priority and profile is one index range.
CREATE INDEX IF NOT EXISTS tasks_pending ON mill.tasks (queue, priority, run_as, id)
    WHERE state = 'pending';
-- mill.grant: of each limit the oldest of each priority.
CREATE INDEX IF NOT EXISTS tasks_blocked ON mill.tasks (blocking_limit_id, priority, id)
    WHERE state = 'blocked';
-- mill.block_pending: what is set on a group reaches its tasks.
CREATE INDEX IF NOT EXISTS tasks_group ON mill.tasks (group_name)
    WHERE state = 'pending' AND group_name IS NOT NULL;
-- queue/src/promote.rs
CREATE INDEX IF NOT EXISTS tasks_scheduled ON mill.tasks (due_at, id) WHERE state = 'scheduled';
-- queue/src/reclaim.rs, mill.running. Statements that finish a task name its id and token and never
-- its state, so that the planner cannot choose this index for them: with an old snapshot open it
-- is full of dead entries.
CREATE INDEX IF NOT EXISTS tasks_running ON mill.tasks (claimed_by) WHERE state = 'running';

CREATE TABLE IF NOT EXISTS mill.dedup_keys (
    key text PRIMARY KEY,
    task_id bigint NOT NULL
);
COMMENT ON TABLE mill.dedup_keys IS 'The live task of each deduplication key; apart from tasks, so that tasks without a key pay nothing';

-- Attempts ---------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.attempts (
    finished_at timestamptz NOT NULL,
    task_id bigint NOT NULL,
    enqueued_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    started_at timestamptz,
    worker_id uuid,
    token uuid,
    retry_interval interval NOT NULL,
    timeout interval,
    rows bigint,
    attempt integer NOT NULL,
    outcome mill.outcome NOT NULL,
    priority mill.priority NOT NULL,
    mode mill.mode NOT NULL,
    backoff mill.backoff NOT NULL,
    max_attempts integer NOT NULL,
    session_pid integer,
    position integer,
    final boolean NOT NULL,
    jitter boolean NOT NULL,
    at_most_once boolean NOT NULL,
    external boolean NOT NULL,
    explain boolean NOT NULL DEFAULT false,
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
    statement text NOT NULL
) PARTITION BY RANGE (finished_at);
COMMENT ON TABLE mill.attempts IS 'One row per attempt that ended, append-only, a partition per day (UTC) made ahead';
COMMENT ON COLUMN mill.attempts.final IS 'The task ended with this attempt';
COMMENT ON COLUMN mill.attempts.started_at IS 'When the attempt was claimed; null if the task ended without being claimed';
COMMENT ON COLUMN mill.attempts.rows IS 'Rows returned or affected, summed over the task''s statements';
COMMENT ON COLUMN mill.attempts.position IS 'Character of the statement at which the error stands, from 1';
COMMENT ON COLUMN mill.attempts.notices IS 'What the statement raised below error, bounded: [{"severity", "message", …}]';
COMMENT ON COLUMN mill.attempts.result IS 'First rows that the statement returned, bounded: {"columns", "rows", "truncated"}';
COMMENT ON COLUMN mill.attempts.plan IS 'Of a task with explain: what EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON) said, bounded: {"Plan", "Planning Time", "Execution Time", …}';
-- pgmill task show, mill.retry, queue/src/resolve_commit.rs
CREATE INDEX IF NOT EXISTS attempts_task ON mill.attempts (task_id);
-- queue/src/history.rs: the last hours of a day. Rows come in the order of time, so a summary per
-- block range is enough and costs an insert next to nothing.
CREATE INDEX IF NOT EXISTS attempts_finished ON mill.attempts USING brin (finished_at);
-- mill.durations: the names that there are, and the last attempts of each. Nameless tasks pay nothing.
CREATE INDEX IF NOT EXISTS attempts_named ON mill.attempts (queue, name, finished_at) WHERE name IS NOT NULL;
-- mill.failure_groups
CREATE INDEX IF NOT EXISTS attempts_failed ON mill.attempts (finished_at)
    WHERE outcome <> 'succeeded' AND outcome <> 'cancelled';

CREATE OR REPLACE FUNCTION mill.prepare_history(days_ahead integer DEFAULT 7) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE
    made integer := 0;
    day date;
    partition_name text;
BEGIN
    FOR day IN SELECT generate_series(current_date, current_date + days_ahead, '1 day')::date LOOP
        partition_name := 'attempts_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('mill.' || partition_name) IS NOT NULL;
        -- One maker at a time; the others find the partition there.
        PERFORM pg_advisory_xact_lock(7236270912);
        CONTINUE WHEN to_regclass('mill.' || partition_name) IS NOT NULL;
        -- ATTACH takes a lock that lets inserts into the other days go on; PARTITION OF does not.
        EXECUTE format('CREATE TABLE mill.%I (LIKE mill.attempts INCLUDING DEFAULTS)', partition_name);
        EXECUTE format('ALTER TABLE mill.attempts ATTACH PARTITION mill.%I FOR VALUES FROM (%L) TO (%L)',
            partition_name, day::timestamptz, (day + 1)::timestamptz);
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;
COMMENT ON FUNCTION mill.prepare_history IS 'Makes the partitions of mill.attempts for today and the days ahead; returns how many were missing';
DO $$ BEGIN PERFORM mill.prepare_history(); END $$;

CREATE OR REPLACE FUNCTION mill.prune() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
SET lock_timeout = '2s' AS $$
DECLARE
    dropped integer := 0;
    oldest date;
    partition_name text;
    idle_limits bigint[];
    old_runs bigint[];
BEGIN
    SELECT (now() - history_retention)::date INTO oldest FROM mill.settings;
    FOR partition_name IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'mill.attempts'::regclass
            AND c.relname ~ '^attempts_[0-9]{8}$' AND right(c.relname, 8)::date < oldest
        ORDER BY c.relname
    LOOP
        EXECUTE format('DROP TABLE mill.%I', partition_name);
        dropped := dropped + 1;
    END LOOP;
    -- Ids come in the order of time, nearly: the oldest ones are looked at.
    DELETE FROM mill.audit a USING (SELECT o.id FROM mill.audit o ORDER BY o.id LIMIT 50000) AS first, mill.settings s
        WHERE a.id = first.id AND a.at < now() - s.audit_retention;
    DELETE FROM mill.cancel_requests r
        WHERE NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = r.task_id);
    DELETE FROM mill.progress p
        WHERE NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = p.task_id AND t.state = 'running');
    SELECT array_agg(r.id) INTO old_runs FROM (
        SELECT r.id FROM mill.runs r WHERE r.finished_at < oldest ORDER BY r.id LIMIT 1000
        FOR UPDATE SKIP LOCKED) AS r;
    DELETE FROM mill.run_edges e WHERE e.run_id = ANY (old_runs);
    DELETE FROM mill.run_tasks t WHERE t.run_id = ANY (old_runs);
    DELETE FROM mill.run_events e WHERE e.run_id = ANY (old_runs);
    DELETE FROM mill.runs r WHERE r.id = ANY (old_runs);
    DELETE FROM mill.worker_starts s
        WHERE s.started_at < oldest AND NOT EXISTS (SELECT FROM mill.workers w WHERE w.id = s.id);
    DELETE FROM mill.permits p
        WHERE p.counts_until < now() - interval '1 minute'
            OR p.counts_until IS NULL AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = p.task_id);
    -- Of concurrency keys and runs that are over. Who enqueues holds a lock on its limits until its
    -- tasks are there, so the second look sees what the first could not.
    WITH idle AS (
        SELECT l.id FROM mill.limits l
        WHERE (l.kind = 'group' OR l.kind = 'key' AND l.max_running = 1 AND l.rate_starts IS NULL)
            AND NOT EXISTS (SELECT FROM mill.permits p WHERE p.limit_id = l.id)
            AND l.id NOT IN (SELECT unnest(t.limits) FROM mill.tasks t WHERE t.limits IS NOT NULL)
        FOR UPDATE OF l SKIP LOCKED)
    SELECT array_agg(i.id) INTO idle_limits FROM idle i;
    DELETE FROM mill.limits l WHERE l.id = ANY (idle_limits)
        AND l.id NOT IN (SELECT unnest(t.limits) FROM mill.tasks t WHERE t.limits IS NOT NULL);
    RETURN dropped;
END
$$;
COMMENT ON FUNCTION mill.prune IS 'Drops the days of history past settings.history_retention, and runs that ended before; returns how many days';

-- Workers ----------------------------------------------------------------------------------------

CREATE UNLOGGED TABLE IF NOT EXISTS mill.workers (
    id uuid PRIMARY KEY,
    heartbeat bigint NOT NULL DEFAULT 0,
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    heartbeat_interval interval NOT NULL,
    orphan_timeout interval NOT NULL,
    session_lock_key bigint NOT NULL,
    readers integer NOT NULL CHECK (readers > 0),
    busy integer NOT NULL DEFAULT 0,
    draining boolean NOT NULL DEFAULT false,
    queues text[],
    profiles jsonb NOT NULL DEFAULT '{"": 1}'
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.workers IS 'Live workers. Unlogged: a beat writes no WAL, and after a crash of the server nobody is alive';
COMMENT ON COLUMN mill.workers.id IS 'Random per process start';
COMMENT ON COLUMN mill.workers.session_lock_key IS 'Key of the shared advisory lock that the control session holds';
COMMENT ON COLUMN mill.workers.draining IS 'Claims no more tasks';
COMMENT ON COLUMN mill.workers.profiles IS 'How many of its readers run tasks of each profile';
COMMENT ON COLUMN mill.workers.queues IS 'Queues it serves; null = every queue';

CREATE TABLE IF NOT EXISTS mill.worker_starts (
    id uuid PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT now(),
    pid integer NOT NULL,
    host text NOT NULL,
    version text NOT NULL,
    schema_version integer NOT NULL
);
COMMENT ON TABLE mill.worker_starts IS 'Which process a worker id was; history names workers through it';
COMMENT ON COLUMN mill.worker_starts.version IS 'Of pgmill';
COMMENT ON COLUMN mill.worker_starts.schema_version IS 'The version of the schema that it was built for';

CREATE TABLE IF NOT EXISTS mill.cancel_requests (
    task_id bigint PRIMARY KEY,
    requested_at timestamptz NOT NULL DEFAULT now(),
    requested_by text NOT NULL DEFAULT session_user
);
COMMENT ON TABLE mill.cancel_requests IS 'Requests to cancel a running task; apart from tasks, because a write to a running task''s row would fail the finish of a REPEATABLE READ task';

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
COMMENT ON TABLE mill.progress IS 'What running tasks say of themselves, as their workers hear it, about once a second; apart from tasks, because a write to a running task''s row would fail the finish of a REPEATABLE READ task. A row of an attempt that is over says nothing: mill.running leaves it out';
COMMENT ON COLUMN mill.progress.percent IS 'Of the last notice of the form progress: 40% loading';
COMMENT ON COLUMN mill.progress.message IS 'The rest of that notice';
COMMENT ON COLUMN mill.progress.notices IS 'The last notices of other forms, the newest last';

-- Jobs and runs ----------------------------------------------------------------------------------
--
-- A job is a named set of tasks with edges. A run is a frozen copy of one or more jobs, merged when
-- it starts. The queue knows nothing of graphs: a task of a run gets into mill.tasks when it is ready.
--
-- Its end appends one row to run_events, in the transaction that ends it and without a lock that
-- another task of the run could wait for. mill.advance_run takes these rows under the lock of the
-- run's row, counts at each child what its parents have become, and releases what is ready: in the
-- transaction that takes the rows, so once, whoever does it and whatever dies.

CREATE TABLE IF NOT EXISTS mill.jobs (
    name mill.label PRIMARY KEY CONSTRAINT job_name_plain CHECK (name !~ '[,[:cntrl:]]' AND btrim(name) = name),
    description text,
    category text,
    frequency text,
    priority mill.priority,
    of_schedule boolean NOT NULL DEFAULT false,
    version integer NOT NULL DEFAULT 1,
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT session_user,
    disabled_at timestamptz
);
COMMENT ON TABLE mill.jobs IS 'Named sets of tasks with edges';
COMMENT ON COLUMN mill.jobs.category IS 'For people';
COMMENT ON COLUMN mill.jobs.frequency IS 'How often people mean to run it: words, no timer';
COMMENT ON COLUMN mill.jobs.priority IS 'Of its tasks that name none themselves';
COMMENT ON COLUMN mill.jobs.of_schedule IS 'Made of the statement of a schedule, and changed with that only';
COMMENT ON COLUMN mill.jobs.version IS 'Counts the changes';
COMMENT ON COLUMN mill.jobs.disabled_at IS 'Since then it starts no runs; nothing is deleted';
CREATE UNIQUE INDEX IF NOT EXISTS jobs_any_case ON mill.jobs (lower(name));

CREATE TABLE IF NOT EXISTS mill.job_tasks (
    job mill.label NOT NULL REFERENCES mill.jobs,
    name mill.label NOT NULL,
    description text,
    statement mill.statement NOT NULL,
    params jsonb,
    queue mill.queue_name NOT NULL DEFAULT 'default',
    priority mill.priority,
    group_name mill.label,
    concurrency_key mill.label,
    max_attempts mill.attempt_limit NOT NULL DEFAULT 3,
    retry_interval mill.retry_interval NOT NULL DEFAULT '10 seconds',
    backoff mill.backoff NOT NULL DEFAULT 'exponential',
    jitter boolean NOT NULL DEFAULT true,
    timeout mill.time_limit,
    mode mill.mode NOT NULL DEFAULT 'transaction',
    at_most_once boolean NOT NULL DEFAULT false,
    external boolean NOT NULL DEFAULT false,
    ignore_failure boolean NOT NULL DEFAULT false,
    join_mode mill.join_mode NOT NULL DEFAULT 'all',
    run_as mill.profile_name NOT NULL DEFAULT '',
    disabled_at timestamptz,
    PRIMARY KEY (job, name),
    CONSTRAINT at_most_once_runs_once
        CHECK (NOT at_most_once OR (mode = 'autocommit' AND max_attempts = 1))
);
COMMENT ON TABLE mill.job_tasks IS 'Tasks of jobs';
COMMENT ON COLUMN mill.job_tasks.params IS 'As of a task; {"$param": "day"} is a parameter of the run, {"$result": "parent", "column": "n"} a value of the first row that a parent returned';
COMMENT ON COLUMN mill.job_tasks.ignore_failure IS 'Its failure does not make the run fail';
COMMENT ON COLUMN mill.job_tasks.join_mode IS 'all: when every parent has ended as its edge expects; any: when the first has';
COMMENT ON COLUMN mill.job_tasks.disabled_at IS 'Since then no run has it; nothing is deleted';

CREATE TABLE IF NOT EXISTS mill.job_edges (
    job mill.label NOT NULL REFERENCES mill.jobs,
    child mill.label NOT NULL,
    parent mill.label NOT NULL,
    expected mill.expected NOT NULL DEFAULT 'succeeded',
    disabled_at timestamptz,
    PRIMARY KEY (job, child, parent)
);
COMMENT ON TABLE mill.job_edges IS 'Which task of a job waits for which';
COMMENT ON COLUMN mill.job_edges.disabled_at IS 'Since then no run has it; nothing is deleted';

CREATE TABLE IF NOT EXISTS mill.dependencies (
    child mill.label NOT NULL,
    parent mill.label NOT NULL,
    expected mill.expected NOT NULL DEFAULT 'succeeded',
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT session_user,
    disabled_at timestamptz,
    PRIMARY KEY (child, parent)
);
COMMENT ON TABLE mill.dependencies IS 'Which task waits for which in every run that has both; so it is the lineage of what they load, too';
COMMENT ON COLUMN mill.dependencies.disabled_at IS 'Since then it does not hold; nothing is deleted';
CREATE INDEX IF NOT EXISTS dependencies_parent ON mill.dependencies (parent);

CREATE TABLE IF NOT EXISTS mill.runs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    jobs text[] NOT NULL,
    params jsonb NOT NULL,
    state mill.run_state NOT NULL DEFAULT 'running',
    tasks integer NOT NULL DEFAULT 0,
    open integer NOT NULL DEFAULT 0,
    succeeded integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    ignored integer NOT NULL DEFAULT 0,
    cancelled integer NOT NULL DEFAULT 0,
    upstream_failed integer NOT NULL DEFAULT 0,
    restarts integer NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_by text NOT NULL DEFAULT session_user,
    finished_at timestamptz,
    cancelled_at timestamptz,
    cancelled_by text,
    kill boolean NOT NULL DEFAULT false,
    needs_rescan boolean NOT NULL DEFAULT false,
    dropped text[],
    schedule_id bigint,
    fire_at timestamptz,
    reason text,
    CONSTRAINT fired_by_a_schedule CHECK (num_nonnulls(schedule_id, fire_at, reason) IN (0, 3)),
    CONSTRAINT finished_has_time CHECK ((state = 'running') = (finished_at IS NULL)),
    CONSTRAINT every_task_counts CHECK (state = 'running'
        OR tasks = succeeded + failed + ignored + cancelled + upstream_failed)
);
COMMENT ON TABLE mill.runs IS 'Runs: frozen copies of jobs, merged. Kept as long as history';
COMMENT ON COLUMN mill.runs.jobs IS 'In the order in which they were named';
COMMENT ON COLUMN mill.runs.open IS 'Tasks that have not ended, as far as mill.advance_run has come';
COMMENT ON COLUMN mill.runs.needs_rescan IS 'Some tasks may be ready or have children to tell of which no event tells';
COMMENT ON COLUMN mill.runs.succeeded IS 'As of its end, like the next four; mill.run_status counts those of a run that goes on';
COMMENT ON COLUMN mill.runs.failed IS 'Tasks that failed and whose failure counts';
COMMENT ON COLUMN mill.runs.ignored IS 'Tasks that failed, and it was said that this does not count';
COMMENT ON COLUMN mill.runs.upstream_failed IS 'Tasks that cannot run, because of what their parents became';
COMMENT ON COLUMN mill.runs.kill IS 'Cancelled with its running tasks';
COMMENT ON COLUMN mill.runs.schedule_id IS 'The schedule that fired it; null: somebody started it';
COMMENT ON COLUMN mill.runs.fire_at IS 'The instant for which it was fired';
COMMENT ON COLUMN mill.runs.reason IS 'What made it fire: schedule, manual, or what was found in the table';
COMMENT ON COLUMN mill.runs.dropped IS 'Edges to tasks that are in none of its jobs: parent > child';

-- mill.fire: each instant of a schedule once, whoever ticks.
CREATE UNIQUE INDEX IF NOT EXISTS runs_fire ON mill.runs (schedule_id, fire_at) WHERE schedule_id IS NOT NULL;
-- The history of one schedule, page by page.
CREATE INDEX IF NOT EXISTS runs_schedule ON mill.runs (schedule_id, id) WHERE schedule_id IS NOT NULL;
-- mill.blocking_run; fleet.rs counts the runs that go on
CREATE INDEX IF NOT EXISTS runs_in_progress ON mill.runs (schedule_id) WHERE state = 'running';

CREATE TABLE IF NOT EXISTS mill.run_tasks (
    run_id bigint NOT NULL,
    node bigint NOT NULL,
    task_id bigint,
    propagated_to bigint NOT NULL DEFAULT 0,
    started_at timestamptz,
    finished_at timestamptz,
    rows bigint,
    retry_interval mill.retry_interval NOT NULL,
    timeout mill.time_limit,
    state mill.run_task_state NOT NULL DEFAULT 'waiting',
    outcome mill.outcome,
    priority mill.priority,
    mode mill.mode NOT NULL,
    backoff mill.backoff NOT NULL,
    join_mode mill.join_mode NOT NULL DEFAULT 'all',
    parents integer NOT NULL DEFAULT 0,
    satisfied integer NOT NULL DEFAULT 0,
    unsatisfied integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    session_pid integer,
    max_attempts mill.attempt_limit NOT NULL,
    pending_propagation boolean NOT NULL DEFAULT false,
    takes_results boolean NOT NULL DEFAULT false,
    ignore_failure boolean NOT NULL DEFAULT false,
    jitter boolean NOT NULL,
    at_most_once boolean NOT NULL,
    external boolean NOT NULL,
    queue mill.queue_name NOT NULL,
    name mill.label NOT NULL,
    job mill.label,
    group_name mill.label,
    concurrency_key mill.label,
    message text,
    result jsonb,
    run_as mill.profile_name NOT NULL DEFAULT '',
    params jsonb,
    statement mill.statement NOT NULL,
    PRIMARY KEY (run_id, node),
    CONSTRAINT run_tasks_name UNIQUE (name, run_id),
    CONSTRAINT run_at_most_once_runs_once
        CHECK (NOT at_most_once OR (mode = 'autocommit' AND max_attempts = 1))
) WITH (fillfactor = 80, toast_tuple_target = 512, autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.run_tasks IS 'Tasks of runs, frozen at the start';
COMMENT ON COLUMN mill.run_tasks.task_id IS 'tasks.id and attempts.task_id, once it was ready';
COMMENT ON COLUMN mill.run_tasks.parents IS 'Edges that lead to it; satisfied and unsatisfied count those whose parent has ended';
COMMENT ON COLUMN mill.run_tasks.pending_propagation IS 'It has ended, and its children do not know yet, but for those up to node propagated_to';
COMMENT ON COLUMN mill.run_tasks.takes_results IS 'params name results of parents';
COMMENT ON COLUMN mill.run_tasks.job IS 'Null: added while the run went on';
COMMENT ON COLUMN mill.run_tasks.result IS 'First row that it returned, by column, up to 8 kB';
-- mill.advance_run: what is ready, and what is left to cancel. Like the one of the names it does not begin
-- with run_id: where statistics know of few rows it would look as good as the primary key, for any node.
CREATE INDEX IF NOT EXISTS run_tasks_state ON mill.run_tasks (state, run_id, node);
CREATE INDEX IF NOT EXISTS run_tasks_pending_propagation ON mill.run_tasks (run_id, node) WHERE pending_propagation;
CREATE SEQUENCE IF NOT EXISTS mill.added_nodes START 1000000000000;
COMMENT ON SEQUENCE mill.added_nodes IS 'run_tasks.node of tasks that are added to a live run: above those that it started with';

CREATE TABLE IF NOT EXISTS mill.run_edges (
    run_id bigint NOT NULL,
    parent bigint NOT NULL,
    child bigint NOT NULL,
    expected mill.expected NOT NULL,
    PRIMARY KEY (run_id, parent, child)
);
COMMENT ON TABLE mill.run_edges IS 'Edges of runs, by run_tasks.node';
CREATE INDEX IF NOT EXISTS run_edges_child ON mill.run_edges (run_id, child);

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
COMMENT ON TABLE mill.run_events IS 'What mill.advance_run has still to take in: a task of a run has ended (outcome), was added (no outcome), or the run is to be looked at (no node)';
CREATE INDEX IF NOT EXISTS run_events_run ON mill.run_events (run_id, id);

-- Schedules --------------------------------------------------------------------------------------
--
-- A schedule says when jobs run by themselves. Its timing is a text; only programs understand it
-- (crate schedule): instants are worked out in one place, and stored. Whatever has to be looked at
-- by a tick has next_tick_at. A tick takes rows that are due, and what it decides about them commits
-- with the runs that it starts: a fire is a run with a schedule and an instant.

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
    timing text NOT NULL CONSTRAINT timing_length CHECK (octet_length(timing) BETWEEN 1 AND 4000),
    mode mill.fire_mode NOT NULL GENERATED ALWAYS AS (CASE lower(btrim(split_part(timing, '(', 1)))
        WHEN 'manual' THEN 'manual'::mill.fire_mode WHEN 'trigger' THEN 'triggered'::mill.fire_mode
        ELSE 'scheduled'::mill.fire_mode END) STORED,
    overlap mill.overlap NOT NULL DEFAULT 'skip',
    catch_up integer NOT NULL DEFAULT 1 CONSTRAINT catch_up_range CHECK (catch_up BETWEEN 0 AND 1000),
    max_lateness interval CONSTRAINT max_lateness_range CHECK (max_lateness BETWEEN '0' AND '365 days'),
    declared_jitter interval NOT NULL DEFAULT '0'
        CONSTRAINT declared_jitter_range CHECK (declared_jitter BETWEEN '0' AND '1 day'),
    enabled boolean NOT NULL DEFAULT true,
    max_attempts mill.attempt_limit,
    retry_interval mill.retry_interval,
    jitter interval CONSTRAINT jitter_range CHECK (jitter BETWEEN '0' AND '1 day'),
    removed_at timestamptz,
    version integer NOT NULL DEFAULT 1,
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT session_user,
    planned_from timestamptz NOT NULL DEFAULT now(),
    next_tick_at timestamptz,
    next_fire_at timestamptz,
    queued_fire_at timestamptz,
    trigger jsonb,
    error text,
    last_fire_at timestamptz,
    last_finished_at timestamptz,
    last_state mill.run_state,
    last_success_at timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.schedules IS 'When jobs run by themselves';
COMMENT ON COLUMN mill.schedules.declared_as IS 'Of a comment: the procedure that carries it';
COMMENT ON COLUMN mill.schedules.definition IS 'As it was declared: what mill.put_schedule was given';
COMMENT ON COLUMN mill.schedules.own_job IS 'Its job was made for it, of one statement';
COMMENT ON COLUMN mill.schedules.params IS 'Of its runs; beside them fire_at, schedule and reason, for tasks that take {"$param": …} of these names';
COMMENT ON COLUMN mill.schedules.timing IS 'manual, a cadence such as daily(03:15), or trigger(…): docs/schedules.md';
COMMENT ON COLUMN mill.schedules.catch_up IS 'Of fires that nobody made in time, so many newest ones are made late; the others are recorded as missed';
COMMENT ON COLUMN mill.schedules.max_lateness IS 'A fire later than this is not made; null = any';
COMMENT ON COLUMN mill.schedules.enabled IS 'A person''s, like the next three: no declaration changes it';
COMMENT ON COLUMN mill.schedules.max_attempts IS 'Of its tasks; null = as they are declared';
COMMENT ON COLUMN mill.schedules.retry_interval IS 'Of its tasks; null = as they are declared';
COMMENT ON COLUMN mill.schedules.jitter IS 'A fire is made up to so much later; null = declared_jitter';
COMMENT ON COLUMN mill.schedules.removed_at IS 'Its declaration is gone since then: it does not fire; nothing is deleted';
COMMENT ON COLUMN mill.schedules.planned_from IS 'Its timing counts from here on';
COMMENT ON COLUMN mill.schedules.next_tick_at IS 'When a tick has to look at it; null: never';
COMMENT ON COLUMN mill.schedules.next_fire_at IS 'By its timing; null: not worked out yet, or none';
COMMENT ON COLUMN mill.schedules.queued_fire_at IS 'Overlap queue: this fire waits for the end of a run';
COMMENT ON COLUMN mill.schedules.trigger IS 'What timing says about a trigger, as a worker has read it';
COMMENT ON COLUMN mill.schedules.error IS 'What is wrong with timing; or with the last look at what triggers it';
-- mill.lock_due_schedules: a tick costs what is due, not what exists.
CREATE INDEX IF NOT EXISTS schedules_tick ON mill.schedules (next_tick_at) WHERE next_tick_at IS NOT NULL;

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
COMMENT ON TABLE mill.schedule_log IS 'What happened to schedules, append-only, kept for settings.schedule_log_retention';
COMMENT ON COLUMN mill.schedule_log.reason IS 'What made it fire: schedule, manual, or what was found in the table';
COMMENT ON COLUMN mill.schedule_log.rows IS 'Triggered: rows that were pending';
COMMENT ON COLUMN mill.schedule_log.count IS 'Missed: how many fires';
COMMENT ON COLUMN mill.schedule_log.run_id IS 'The run that was fired or has ended; skipped: the run that goes on';
COMMENT ON COLUMN mill.schedule_log.duration IS 'Completed: how long the run took';
-- The log of one schedule, page by page.
CREATE INDEX IF NOT EXISTS schedule_log_schedule ON mill.schedule_log (schedule_id, id);

CREATE TABLE IF NOT EXISTS mill.schedule_declaration_errors (
    declared_as text NOT NULL,
    place text NOT NULL,
    message text NOT NULL,
    hint text,
    found_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (declared_as, place, message)
);
COMMENT ON TABLE mill.schedule_declaration_errors IS 'What is wrong in the comments of procedures, as the last schedule sync found it';
COMMENT ON COLUMN mill.schedule_declaration_errors.place IS 'line:column of the comment';

-- Permits: blocked <-> pending ---------------------------------------------------------------------
--
-- A task that some limit applies to is blocked until it holds a permit of each of its limits; the
-- claim knows nothing of it, and other tasks pay nothing. Permits are handed out under a lock on the
-- row of their limit, which is what no count at the moment of a claim can replace. They end when the
-- task stops being pending or running, in the same transaction and without that lock. Whoever then
-- hands them on locks limits in the order (kind, id), and tasks only where nobody else holds them.

CREATE TABLE IF NOT EXISTS mill.permits (
    limit_id bigint NOT NULL,
    task_id bigint NOT NULL,
    counts_until timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
-- A task may have several starts that count for one limit, so no columns identify a row.
ALTER TABLE mill.permits REPLICA IDENTITY FULL;
COMMENT ON TABLE mill.permits IS 'Who may run: one row per limit and pending or running task; of a limit with a rate also the starts that still count';
COMMENT ON COLUMN mill.permits.counts_until IS 'The task has ended, and its start counts towards the rate until then';
CREATE INDEX IF NOT EXISTS permits_limit ON mill.permits (limit_id);
CREATE INDEX IF NOT EXISTS permits_task ON mill.permits (task_id) WHERE counts_until IS NULL;

CREATE UNLOGGED TABLE IF NOT EXISTS mill.limit_reconciliation (
    at timestamptz NOT NULL,
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);
COMMENT ON TABLE mill.limit_reconciliation IS 'When the fleet last looked after all limits; after a crash of the server: never';

CREATE OR REPLACE FUNCTION mill.resolve_local_time(at_local timestamp, zone text) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        -- No change of the clock within three hours before, nor right here.
        WHEN i.later AT TIME ZONE zone = at_local
            AND (i.later - interval '3 hours') AT TIME ZONE zone = at_local - interval '3 hours'
        THEN i.later
        ELSE (SELECT min(m) FROM generate_series(i.later - interval '3 hours', i.later, interval '1 minute') AS m
            WHERE m AT TIME ZONE zone >= at_local)
    END
    FROM (SELECT at_local AT TIME ZONE zone AS later) AS i
$$;
COMMENT ON FUNCTION mill.resolve_local_time IS 'When the clocks of a zone first show this time or a later one: where they are put forward, the first instant after the gap; where they are put back, the first of two';

CREATE OR REPLACE FUNCTION mill.active_period(opens time, closes time, zone text, at timestamptz,
    OUT open boolean, OUT until timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(bool_or(at >= p.begins AND at < p.ends), opens IS NULL),
        coalesce(max(p.ends) FILTER (WHERE at >= p.begins AND at < p.ends),
            min(p.begins) FILTER (WHERE p.begins > at))
    FROM (SELECT mill.resolve_local_time(d.day + opens, zone) AS begins, mill.resolve_local_time(
            d.day + closes + CASE WHEN closes < opens THEN interval '1 day' ELSE '0' END, zone) AS ends
        FROM generate_series(-1, 2) AS n
            CROSS JOIN LATERAL (SELECT (at AT TIME ZONE zone)::date + n AS day) AS d
        WHERE opens IS NOT NULL) AS p
$$;
COMMENT ON FUNCTION mill.active_period IS 'Whether a period of the day is open at an instant, and until when it stays so or stays closed; no period = always open, until null';

CREATE OR REPLACE VIEW mill.effective_limits AS
    SELECT l.id, l.kind, l.name, l.run_id,
        terms.max_running, coalesce(terms.max_running = 0, false) AS paused,
        l.rate_starts, l.rate_period, l.window_starts, l.window_length, g.opens, g.closes, g.zone
    FROM mill.limits l LEFT JOIN mill.groups g ON l.kind = 'group' AND g.name = l.name
        CROSS JOIN LATERAL (SELECT CASE WHEN l.kind = 'group' THEN g.max_running ELSE l.max_running END) AS terms (max_running);
COMMENT ON VIEW mill.effective_limits IS 'Each limit with its terms in force; max_running null = no limit, 0 = paused';

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
    -- Rows are locked against removal until the task is there, and against nothing else.
    IF concurrency_key IS NOT NULL THEN
        LOOP
            SELECT l.id, l.max_running INTO found_id, found_max FROM mill.limits l
                WHERE l.kind = 'key' AND l.name = concurrency_key AND l.run_id = 0 FOR KEY SHARE;
            EXIT WHEN FOUND;
            INSERT INTO mill.limits (kind, name, max_running)
                VALUES ('key', concurrency_key, coalesce(concurrency, 1)) ON CONFLICT DO NOTHING;
        END LOOP;
        IF concurrency <> found_max THEN
            RAISE EXCEPTION 'concurrency key "%" allows % tasks at once, not %', concurrency_key, found_max,
                concurrency USING ERRCODE = '22023',
                HINT = format('To change it for all its tasks: pgmill limit set %s --max-running %s', concurrency_key, concurrency);
        END IF;
        chain := chain || found_id;
    ELSIF concurrency IS NOT NULL THEN
        RAISE EXCEPTION 'a concurrency without a concurrency key' USING ERRCODE = '22023';
    END IF;
    IF group_name IS NOT NULL THEN
        SELECT g.* INTO found_group FROM mill.groups g WHERE g.name = group_name FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no group "%"', group_name USING ERRCODE = '22023',
                HINT = 'Make it with pgmill group set, or SELECT mill.set_group(…).';
        END IF;
        IF found_group.requires_permit THEN
            LOOP
                SELECT l.id INTO found_id FROM mill.limits l WHERE l.kind = 'group'
                    AND l.name = group_name AND l.run_id = coalesce(run_id, 0) FOR KEY SHARE;
                EXIT WHEN FOUND;
                INSERT INTO mill.limits (kind, name, run_id)
                    VALUES ('group', group_name, coalesce(run_id, 0)) ON CONFLICT DO NOTHING;
            END LOOP;
            chain := chain || found_id;
        END IF;
    END IF;
    SELECT l.id INTO found_id FROM mill.limits l
        WHERE l.kind = 'queue' AND l.name = queue AND l.run_id = 0 AND l.requires_permit FOR KEY SHARE;
    IF FOUND THEN
        chain := chain || found_id;
    END IF;
    RETURN nullif(chain, '{}');
END
$$;
COMMENT ON FUNCTION mill.required_limits IS 'The limits in force for such a task, in the order in which it acquires their permits; null: none';

CREATE OR REPLACE FUNCTION mill.has_group_permit(group_name text, limits bigint[]) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM mill.groups g WHERE g.name = has_group_permit.group_name AND g.requires_permit)
        OR EXISTS (SELECT FROM mill.limits l WHERE l.id = ANY (has_group_permit.limits) AND l.kind = 'group');
END
$$;
COMMENT ON FUNCTION mill.has_group_permit IS 'Whether a pending task of the group has the permit that the group asks for';

CREATE OR REPLACE FUNCTION mill.release_permits(task_ids bigint[], started_at timestamptz[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    UPDATE mill.permits p
        SET counts_until = started_at[array_position(task_ids, p.task_id)] + l.window_length
        FROM mill.limits l
        WHERE p.task_id = ANY (task_ids) AND p.counts_until IS NULL AND l.id = p.limit_id
            AND started_at[array_position(task_ids, p.task_id)] + l.window_length > clock_timestamp();
    DELETE FROM mill.permits p WHERE p.task_id = ANY (task_ids) AND p.counts_until IS NULL;
END
$$;
COMMENT ON FUNCTION mill.release_permits IS 'Ends the permits of tasks that are no longer pending or running; of a limit with a rate their starts go on counting for a while. started_at: null if never started';

CREATE OR REPLACE FUNCTION mill.grant_permits(limit_ids bigint[], OUT granted integer, OUT next_in interval)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    kind_now mill.limit_kind;
    limit_id bigint;
    terms mill.effective_limits;
    period record;
    at timestamptz;
    free integer;
    next_at timestamptz;
    onward bigint[];
    passed integer;
BEGIN
    granted := 0;
    -- As with a claim: WAL is ordered, so what a permit led to does not survive without the permit.
    PERFORM set_config('synchronous_commit', 'off', true);
    FOREACH kind_now IN ARRAY enum_range(NULL::mill.limit_kind) LOOP
        FOR limit_id IN SELECT l.id FROM mill.limits l
            WHERE l.id = ANY (limit_ids) AND l.kind = kind_now ORDER BY l.id
        LOOP
            CONTINUE WHEN NOT EXISTS (SELECT FROM mill.tasks t
                WHERE t.state = 'blocked' AND t.blocking_limit_id = limit_id);
            PERFORM FROM mill.limits l WHERE l.id = limit_id FOR NO KEY UPDATE;
            -- From here on nobody else grants; each statement sees what those before have granted.
            at := clock_timestamp();
            SELECT t.* INTO terms FROM mill.effective_limits t WHERE t.id = limit_id;
            DELETE FROM mill.permits p WHERE p.limit_id = terms.id AND p.counts_until <= at;
            SELECT least(1000, terms.max_running - count(*) FILTER (WHERE p.counts_until IS NULL))
                INTO free FROM mill.permits p WHERE p.limit_id = terms.id;
            IF terms.window_starts IS NOT NULL THEN
                -- A permit whose task has not started counts, and a start for one window.
                SELECT least(free, terms.window_starts - count(*) FILTER (WHERE s.until > at)),
                    least(next_at, at + terms.window_length, min(s.until) FILTER (WHERE s.until > at))
                    INTO free, next_at
                    FROM (SELECT coalesce(p.counts_until, CASE WHEN t.state = 'running'
                            THEN t.claimed_at + terms.window_length ELSE 'infinity' END) AS until
                        FROM mill.permits p LEFT JOIN mill.tasks t ON t.id = p.task_id
                        WHERE p.limit_id = terms.id) AS s;
            END IF;
            SELECT a.open, a.until INTO period
                FROM mill.active_period(terms.opens, terms.closes, terms.zone, at) AS a;
            IF NOT period.open THEN
                free := 0;
                next_at := least(next_at, period.until);
            END IF;
            CONTINUE WHEN free <= 0;
            WITH picked AS MATERIALIZED (
                SELECT head.id FROM (
                    -- A weighted random permutation, as the claim's.
                    SELECT w.priority FROM mill.priorities w
                    ORDER BY CASE WHEN w.weight > 0 THEN -ln(1 - random()) / w.weight ELSE 'Infinity' END
                ) AS ranked CROSS JOIN LATERAL (
                    SELECT t.id FROM mill.tasks t
                    WHERE t.state = 'blocked' AND (t.blocking_limit_id, t.priority) = (terms.id, ranked.priority)
                    ORDER BY t.id LIMIT free FOR NO KEY UPDATE SKIP LOCKED
                ) AS head LIMIT free
            ), permitted AS (
                INSERT INTO mill.permits (limit_id, task_id) SELECT terms.id, p.id FROM picked p
            ), moved AS (
                UPDATE mill.tasks t SET
                    blocking_limit_id = t.limits[array_position(t.limits, terms.id) + 1],
                    state = CASE WHEN t.limits[array_position(t.limits, terms.id) + 1] IS NULL
                        THEN 'pending'::mill.state ELSE 'blocked' END,
                    start_by = CASE WHEN terms.opens IS NULL THEN t.start_by ELSE period.until END
                WHERE t.id = ANY (ARRAY(SELECT p.id FROM picked p))
                RETURNING t.blocking_limit_id
            )
            SELECT count(*) FILTER (WHERE m.blocking_limit_id IS NULL), array_agg(DISTINCT m.blocking_limit_id)
                    FILTER (WHERE m.blocking_limit_id IS NOT NULL)
                INTO passed, onward FROM moved m;
            granted := granted + passed;
            -- Of a later kind always.
            limit_ids := limit_ids || onward;
        END LOOP;
    END LOOP;
    next_in := next_at - clock_timestamp();
END
$$;
COMMENT ON FUNCTION mill.grant_permits IS 'Hands out what is free of these limits, up to 1000 permits of each. granted: how many tasks became pending; next_in: until more is free by the clock alone';

CREATE OR REPLACE FUNCTION mill.grant_waiting_permits(OUT granted integer, OUT next_in interval)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    waited_for bigint[];
BEGIN
    -- A walk over the distinct limits of the index, one probe each.
    WITH RECURSIVE waited (id) AS (
        (SELECT t.blocking_limit_id FROM mill.tasks t WHERE t.state = 'blocked' ORDER BY t.blocking_limit_id LIMIT 1)
        UNION ALL
        SELECT next.blocking_limit_id FROM waited w CROSS JOIN LATERAL (
            SELECT t.blocking_limit_id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id > w.id
            ORDER BY t.blocking_limit_id LIMIT 1) AS next
    )
    SELECT array_agg(w.id) INTO waited_for FROM waited w JOIN mill.effective_limits l ON l.id = w.id
        WHERE l.max_running IS NULL OR l.max_running > (SELECT count(*) FROM mill.permits p
            WHERE p.limit_id = w.id AND p.counts_until IS NULL);
    SELECT g.granted, g.next_in INTO granted, next_in
        FROM mill.grant_permits(coalesce(waited_for, '{}')) AS g;
END
$$;
COMMENT ON FUNCTION mill.grant_waiting_permits IS 'mill.grant_permits for every limit that a task waits for and that has room';

CREATE OR REPLACE FUNCTION mill.revoke_permits(limit_ids bigint[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    revoked bigint[];
BEGIN
    PERFORM FROM mill.limits l WHERE l.id = ANY (limit_ids) ORDER BY l.kind, l.id FOR NO KEY UPDATE;
    WITH waiting AS MATERIALIZED (
        SELECT t.id FROM mill.tasks t JOIN mill.permits p ON p.task_id = t.id
        WHERE p.limit_id = ANY (limit_ids) AND p.counts_until IS NULL AND t.state = 'pending'
        ORDER BY t.id FOR NO KEY UPDATE OF t
    ), back AS (
        UPDATE mill.tasks t SET state = 'blocked', blocking_limit_id = t.limits[1], start_by = NULL
        FROM waiting WHERE t.id = waiting.id AND t.state = 'pending' RETURNING t.id
    )
    SELECT array_agg(b.id) INTO revoked FROM back b;
    PERFORM mill.release_permits(revoked, NULL) WHERE revoked IS NOT NULL;
    RETURN coalesce(cardinality(revoked), 0);
END
$$;
COMMENT ON FUNCTION mill.revoke_permits IS 'pending -> blocked for the tasks that have a permit of these limits and have not started; returns how many';

CREATE OR REPLACE FUNCTION mill.block_pending(queue text, group_name text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    slipped bigint[];
    task mill.tasks;
    chain bigint[];
    blocked integer := 0;
BEGIN
    -- One index range each; together they would be a walk over the table.
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
COMMENT ON FUNCTION mill.block_pending IS 'pending -> blocked for tasks of a queue, or of a group, that were enqueued before it got its limit; the claim passes them over';

CREATE OR REPLACE FUNCTION mill.reconcile_limits() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    closed bigint[];
BEGIN
    -- One worker at a time, once a second for the whole fleet.
    INSERT INTO mill.limit_reconciliation (at) VALUES ('-infinity') ON CONFLICT DO NOTHING;
    PERFORM FROM mill.limit_reconciliation r WHERE r.at < clock_timestamp() - interval '1 second'
        FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE mill.limit_reconciliation SET at = clock_timestamp();
    -- Also of a period that has opened again since: no claim takes a task past its start_by.
    SELECT array_agg(DISTINCT l.id) INTO closed
        FROM mill.tasks t JOIN mill.limits l ON l.id = ANY (t.limits) AND l.kind = 'group'
        WHERE t.state = 'pending' AND t.group_name IS NOT NULL AND t.start_by <= clock_timestamp();
    PERFORM mill.revoke_permits(closed) WHERE closed IS NOT NULL;
    PERFORM mill.block_pending(l.name, NULL) FROM mill.limits l WHERE l.kind = 'queue';
    PERFORM mill.block_pending(NULL, g.name) FROM mill.groups g;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.reconcile_limits IS 'Looks after what no task''s end tells of: tasks that slipped in while a limit was set, periods that have closed. Workers call it, and then mill.grant_waiting_permits; more often than once a second it does nothing, and says so';

CREATE OR REPLACE FUNCTION mill.set_max_running(kind mill.limit_kind, name text, max_running integer)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed bigint;
BEGIN
    IF set_max_running.kind = 'group' THEN
        UPDATE mill.groups g SET max_running = set_max_running.max_running WHERE g.name = set_max_running.name;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no group "%"', name USING ERRCODE = '22023';
        END IF;
        PERFORM mill.record_audit('set_max_running', 'group ' || name, jsonb_build_object('max_running', max_running));
        PERFORM mill.enforce_limits(ARRAY(SELECT l.id FROM mill.limits l
            WHERE l.kind = 'group' AND l.name = set_max_running.name), NULL, name);
        RETURN;
    END IF;
    INSERT INTO mill.limits AS l (kind, name, max_running)
        VALUES (set_max_running.kind, set_max_running.name, set_max_running.max_running)
        ON CONFLICT ON CONSTRAINT limits_kind_name_run_id_key
            DO UPDATE SET max_running = excluded.max_running
        RETURNING l.id INTO changed;
    PERFORM mill.record_audit('set_max_running', kind || ' ' || name, jsonb_build_object('max_running', max_running));
    PERFORM mill.enforce_limits(ARRAY[changed], CASE kind WHEN 'queue' THEN name END, NULL);
END
$$;
COMMENT ON FUNCTION mill.set_max_running IS 'Sets how many tasks of a queue, of a concurrency key or of each run of a group may run at once: null = no limit, 0 = no task starts. Running tasks finish';

CREATE OR REPLACE FUNCTION mill.set_rate(kind mill.limit_kind, name text, starts integer, period interval)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    seconds numeric := extract(epoch FROM period);
    divisor integer;
    changed bigint;
BEGIN
    IF set_rate.kind = 'group' THEN
        RAISE EXCEPTION 'a group has no rate' USING ERRCODE = '22023', HINT = 'Set it on a queue or a concurrency key.';
    ELSIF num_nonnulls(starts, period) = 1 THEN
        RAISE EXCEPTION 'a rate is a number of starts and a period' USING ERRCODE = '22023';
    END IF;
    -- Windows that the period is a whole multiple of are as exact as the period itself, and smoother:
    -- as short as they may be without being shorter than one second or holding less than one start.
    SELECT max(d) INTO divisor FROM generate_series(1, least(starts, 1000000)) AS d
        WHERE starts % d = 0 AND d <= greatest(1, floor(starts / seconds));
    INSERT INTO mill.limits AS l (kind, name, rate_starts, rate_period, window_starts, window_length)
        VALUES (set_rate.kind, set_rate.name, starts, period, divisor, period * divisor / starts)
        ON CONFLICT ON CONSTRAINT limits_kind_name_run_id_key DO UPDATE
            SET rate_starts = excluded.rate_starts, rate_period = excluded.rate_period,
                window_starts = excluded.window_starts, window_length = excluded.window_length
        RETURNING l.id INTO changed;
    PERFORM mill.record_audit('set_rate', kind || ' ' || name, jsonb_build_object('starts', starts, 'period', period));
    PERFORM mill.enforce_limits(ARRAY[changed], CASE kind WHEN 'queue' THEN name END, NULL);
END
$$;
COMMENT ON FUNCTION mill.set_rate IS 'At most so many starts of tasks of a queue or of a concurrency key in any period; null, null = any number';

CREATE OR REPLACE FUNCTION mill.enforce_limits(limit_ids bigint[], queue text, group_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- First what locks limits, and no handing out after that: limits come before tasks.
    PERFORM mill.revoke_permits(limit_ids);
    PERFORM mill.block_pending(queue, group_name);
    PERFORM pg_notify('mill', 'sweep');
END
$$;
COMMENT ON FUNCTION mill.enforce_limits IS 'Makes new terms of limits hold for the tasks that are there; workers then hand the permits out anew';

CREATE OR REPLACE FUNCTION mill.set_group(name text, description text DEFAULT NULL,
    priority mill.priority DEFAULT NULL, max_running integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    INSERT INTO mill.groups AS g (name, description, priority, max_running)
        VALUES (name, description, priority, max_running)
        ON CONFLICT ON CONSTRAINT groups_pkey DO UPDATE
            SET description = coalesce(excluded.description, g.description),
                priority = coalesce(excluded.priority, g.priority),
                max_running = coalesce(set_group.max_running, g.max_running);
    PERFORM mill.record_audit('set_group', 'group ' || name,
        jsonb_strip_nulls(jsonb_build_object('priority', priority, 'max_running', max_running)));
    PERFORM mill.enforce_limits(ARRAY(SELECT l.id FROM mill.limits l
        WHERE l.kind = 'group' AND l.name = set_group.name), NULL, name);
END
$$;
COMMENT ON FUNCTION mill.set_group IS 'Creates a group, or changes the given settings of one. mill.set_max_running(''group'', name, null) removes its limit';

CREATE OR REPLACE FUNCTION mill.set_active_period(group_name text, opens time, closes time,
    zone text DEFAULT 'UTC') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF opens = closes THEN
        RAISE EXCEPTION 'an active period of no length' USING ERRCODE = '22023',
            HINT = 'null, null: tasks of the group may start at any time.';
    END IF;
    PERFORM now() AT TIME ZONE set_active_period.zone;
    UPDATE mill.groups g SET opens = set_active_period.opens, closes = set_active_period.closes,
        zone = CASE WHEN set_active_period.opens IS NOT NULL THEN set_active_period.zone END
        WHERE g.name = set_active_period.group_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no group "%"', group_name USING ERRCODE = '22023';
    END IF;
    PERFORM mill.record_audit('set_active_period', 'group ' || group_name,
        jsonb_build_object('opens', opens, 'closes', closes, 'zone', zone));
    PERFORM mill.enforce_limits(ARRAY(SELECT l.id FROM mill.limits l
        WHERE l.kind = 'group' AND l.name = set_active_period.group_name), NULL, group_name);
END
$$;
COMMENT ON FUNCTION mill.set_active_period IS 'Between which times of day, in which zone, tasks of a group may start; closes before opens: over midnight; null, null = at any time';

CREATE OR REPLACE FUNCTION mill.drop_group(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM mill.groups g WHERE g.name = drop_group.name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF EXISTS (SELECT FROM mill.tasks t WHERE t.group_name = drop_group.name) THEN
        RAISE EXCEPTION 'group "%" has live tasks', name USING ERRCODE = '23503',
            HINT = 'Cancel them or wait for their end; --max-running 0 keeps them from starting.';
    END IF;
    IF EXISTS (SELECT FROM mill.job_tasks t WHERE t.group_name = drop_group.name AND t.disabled_at IS NULL)
        OR EXISTS (SELECT FROM mill.runs r JOIN mill.run_tasks t ON t.run_id = r.id
            WHERE r.state = 'running' AND t.group_name = drop_group.name)
    THEN
        RAISE EXCEPTION 'group "%" has tasks of jobs or of runs', name USING ERRCODE = '23503',
            HINT = 'Take the group out of the jobs, and wait for the end of the runs.';
    END IF;
    DELETE FROM mill.limits l WHERE l.kind = 'group' AND l.name = drop_group.name;
    DELETE FROM mill.groups g WHERE g.name = drop_group.name;
    PERFORM mill.record_audit('drop_group', 'group ' || name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.drop_group IS 'Removes a group that no live task belongs to; false: there is none of that name';

CREATE OR REPLACE FUNCTION mill.set_weights(low double precision DEFAULT NULL,
    normal double precision DEFAULT NULL, high double precision DEFAULT NULL,
    critical double precision DEFAULT NULL, reserved double precision DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM mill.priorities p ORDER BY p.priority FOR UPDATE;
    UPDATE mill.priorities p SET weight = coalesce(w.weight, p.weight)
        FROM (VALUES ('low'::mill.priority, low), ('normal', normal), ('high', high),
            ('critical', critical), ('reserved', reserved)) AS w (priority, weight)
        WHERE p.priority = w.priority;
    IF NOT EXISTS (SELECT FROM mill.priorities p WHERE p.weight > 0) THEN
        RAISE EXCEPTION 'all weights are zero' USING ERRCODE = '22023', HINT = 'At least one must be above it.';
    END IF;
    PERFORM mill.record_audit('set_weights', 'priorities', jsonb_strip_nulls(jsonb_build_object('low', low,
        'normal', normal, 'high', high, 'critical', critical, 'reserved', reserved)));
END
$$;
COMMENT ON FUNCTION mill.set_weights IS 'Changes the weights that are given: 0 to 1000000, not all of them 0. Workers see it within two seconds';

CREATE OR REPLACE FUNCTION mill.set_reserved_capacity(capacity mill.reserved_capacity) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE mill.settings SET reserved_capacity = capacity
$$;
COMMENT ON FUNCTION mill.set_reserved_capacity IS 'Which share of the fleet''s readers serves reserved tasks only; workers see it with their next beat';

CREATE OR REPLACE FUNCTION mill.reserved_readers(worker_id uuid) RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    percent integer;
    reserved integer;
BEGIN
    SELECT CASE s.reserved_capacity WHEN 'none' THEN 0 WHEN 'low' THEN 10 WHEN 'medium' THEN 15 ELSE 25 END
        INTO percent FROM mill.settings s;
    IF percent = 0 THEN
        RETURN 0;
    END IF;
    -- Worker after worker in the order of their ids gives all its readers, the last one some.
    SELECT greatest(0, least(me.readers, ceil(fleet.readers * percent / 100.0) - fleet.before)) INTO reserved
        FROM mill.workers me, LATERAL (SELECT sum(w.readers) AS readers,
                coalesce(sum(w.readers) FILTER (WHERE w.id < me.id), 0) AS before
            FROM mill.workers w WHERE NOT w.draining) AS fleet
        WHERE me.id = reserved_readers.worker_id AND NOT me.draining;
    RETURN coalesce(reserved, 0);
END
$$;
COMMENT ON FUNCTION mill.reserved_readers IS 'How many readers of a live worker serve reserved tasks only. Each worker reads the same table, so all agree';

-- enqueue: -> scheduled | blocked | pending ------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.check_statement(statement text, params jsonb) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    limit_bytes integer;
BEGIN
    -- The first characters decide, or else the whole: most statements do not begin with 1 kB of blanks.
    IF statement IS NULL OR (left(statement, 1000) !~ '\S' AND statement !~ '\S') THEN
        RAISE EXCEPTION 'the statement is empty' USING ERRCODE = '22023';
    END IF;
    SELECT s.statement_limit_bytes INTO limit_bytes FROM mill.settings s;
    IF octet_length(statement) > limit_bytes THEN
        RAISE EXCEPTION 'the statement has % bytes, the limit is %', octet_length(statement), limit_bytes
            USING ERRCODE = '54000',
                HINT = 'Load bulk data from a table or a server-side file, or raise statement_limit_bytes in mill.settings.';
    END IF;
    IF jsonb_typeof(params) <> 'array' THEN
        RAISE EXCEPTION 'params is a JSON %, not an array', jsonb_typeof(params)
            USING ERRCODE = '22023', HINT = 'Write the values of $1, $2, … in order: ''["2026-01-01", 7]''.';
    END IF;
    IF jsonb_array_length(params) > 65535 THEN
        RAISE EXCEPTION 'params has more than 65535 values' USING ERRCODE = '54000';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_statement IS 'Raises if the statement is empty or above the size limit, or if params is not a JSON array';

CREATE OR REPLACE FUNCTION mill.check_explain(statement text, mode mill.mode) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF mode = 'autocommit' THEN
        RAISE EXCEPTION 'a task in autocommit mode cannot be explained' USING ERRCODE = '22023',
            HINT = 'Leave out the mode: the statement runs once, in a transaction, while it is explained.';
    ELSIF statement !~* '^(\s|\(|--[^\n]*\n|/\*([^*]|\*+[^*/])*\*+/)*(select|insert|update|delete|merge|with|values|table)\M' THEN
        RAISE EXCEPTION 'this statement has no plan to keep' USING ERRCODE = '22023',
            HINT = 'explain is for one SELECT, INSERT, UPDATE, DELETE, MERGE, VALUES or WITH; wrap nothing around it.';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_explain IS 'Raises if EXPLAIN takes no such statement, by its first word, or the mode is not transaction; that there is only one statement is for who runs it to find';

CREATE OR REPLACE FUNCTION mill.first_state(due_at timestamptz, chain bigint[]) RETURNS mill.state
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN due_at > now() THEN 'scheduled' WHEN chain IS NOT NULL THEN 'blocked'
        ELSE 'pending' END::mill.state
$$;
COMMENT ON FUNCTION mill.first_state IS 'State of a task that is due then, or at once if null, and needs the permits of these limits';

-- Viewing ----------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.sees_statements() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT s.hide_statements OR pg_has_role('mill_operator', 'MEMBER') OR pg_has_role('mill_owner', 'MEMBER')
    FROM mill.settings s
$$;
COMMENT ON FUNCTION mill.sees_statements IS 'Whether the current user is shown what statements are and say';

CREATE OR REPLACE VIEW mill.visible_tasks AS
    -- A subquery is asked once, a function for each row.
    SELECT x.id, x.enqueued_at, x.due_at, x.claimed_at, x.session_started_at, x.claimed_by,
        x.retry_interval, x.timeout, x.state, x.priority, x.mode, x.backoff, x.attempt, x.max_attempts,
        x.failures, x.transient_failures, x.crashes, x.session_pid, x.jitter, x.at_most_once, x.external,
        x.explain, x.queue, x.name, x.key, x.concurrency_key, x.group_name, x.run_id, x.node, x.limits, x.blocking_limit_id, x.start_by,
        x.run_as,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.params END AS params,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.statement END AS statement
    FROM mill.tasks x;
COMMENT ON VIEW mill.visible_tasks IS 'mill.tasks without tokens, for who may view';

CREATE OR REPLACE VIEW mill.visible_attempts AS
    SELECT x.finished_at, x.task_id, x.enqueued_at, x.due_at, x.started_at, x.worker_id, x.retry_interval,
        x.timeout, x.rows, x.attempt, x.outcome, x.priority, x.mode, x.backoff, x.max_attempts,
        x.session_pid, x.position, x.final, x.jitter, x.at_most_once, x.external, x.explain, x.queue, x.name, x.key,
        x.concurrency_key, x.group_name, x.run_id, x.node, x.sqlstate, x.run_as,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.message END AS message,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.detail END AS detail,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.hint END AS hint,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.context END AS context,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.notices END AS notices,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.result END AS result,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.plan END AS plan,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.params END AS params,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.statement END AS statement
    FROM mill.attempts x;
COMMENT ON VIEW mill.visible_attempts IS 'mill.attempts, for who may view';

CREATE OR REPLACE VIEW mill.visible_job_tasks AS
    SELECT x.job, x.name, x.description, x.queue, x.priority, x.group_name, x.concurrency_key,
        x.max_attempts, x.retry_interval, x.backoff, x.jitter, x.timeout, x.mode, x.at_most_once,
        x.external, x.ignore_failure, x.join_mode, x.run_as, x.disabled_at,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.statement END AS statement,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.params END AS params
    FROM mill.job_tasks x;
COMMENT ON VIEW mill.visible_job_tasks IS 'mill.job_tasks, for who may view';

CREATE OR REPLACE VIEW mill.visible_schedule_log AS
    SELECT x.id, x.schedule_id, x.logged_at, x.event, x.fire_at, x.reason, x.rows, x.count, x.run_id,
        x.outcome, x.duration,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.message END AS message
    FROM mill.schedule_log x;
COMMENT ON VIEW mill.visible_schedule_log IS 'mill.schedule_log, for who may view';

-- Evaluated with the rights of whoever asks: inside a function that belongs to somebody else, those of
-- that owner.
CREATE OR REPLACE VIEW mill.my_profiles WITH (security_barrier) AS
SELECT p.name, p.description, p.key
FROM mill.profiles p
WHERE EXISTS (SELECT FROM unnest(p.allowed) AS a(role) JOIN pg_roles r ON r.rolname = a.role
    WHERE pg_has_role(current_user, r.oid, 'MEMBER'));
COMMENT ON VIEW mill.my_profiles IS 'Profiles that the current user may have tasks run as';

CREATE OR REPLACE FUNCTION mill.profile(name text) RETURNS uuid
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_key uuid;
BEGIN
    SELECT p.key INTO found_key FROM mill.my_profiles p WHERE p.name = profile.name;
    IF found_key IS NULL THEN
        RAISE EXCEPTION '"%" may not have tasks run as "%"', current_user, name USING ERRCODE = '42501',
            HINT = format('The owner of the queue allows it: SELECT mill.set_profile(%L, allowed => ARRAY[%L])', name, current_user);
    END IF;
    RETURN found_key;
END
$$;
COMMENT ON FUNCTION mill.profile IS 'Key of a profile, for mill.submit and mill.enqueue_many; raises if the current user may not have tasks run as it';

CREATE OR REPLACE FUNCTION mill.name_of_profile(profile uuid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_name text;
BEGIN
    SELECT p.name INTO found_name FROM mill.profiles p WHERE p.key = profile;
    IF found_name IS NULL THEN
        RAISE EXCEPTION 'this is the key of no profile' USING ERRCODE = '42501', HINT = 'profile => mill.profile(''name'')';
    END IF;
    RETURN found_name;
END
$$;
COMMENT ON FUNCTION mill.name_of_profile IS 'Part of mill.submit: what a key opens; raises if nothing';

-- Whoever may declare jobs decides what their tasks run as, so the one who is logged in is asked, or
-- the role that he has taken.
CREATE OR REPLACE FUNCTION mill.check_profile(name text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller text := coalesce(nullif(current_setting('role'), 'none'), session_user);
BEGIN
    IF NOT EXISTS (SELECT FROM mill.profiles p, unnest(p.allowed) AS a(role) JOIN pg_roles r ON r.rolname = a.role
        WHERE p.name = check_profile.name AND pg_has_role(caller, r.oid, 'MEMBER'))
    THEN
        RAISE EXCEPTION '"%" may not have tasks run as "%"', caller, name USING ERRCODE = '42501',
            HINT = format('The owner of the queue allows it: SELECT mill.set_profile(%L, allowed => ARRAY[%L])', name, caller);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_profile IS 'Part of mill.set_job_task: raises if the caller may not have tasks run as this profile';

CREATE OR REPLACE FUNCTION mill.set_profile(name text, allowed text[] DEFAULT NULL,
    description text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    missing text;
BEGIN
    SELECT a.role INTO missing FROM unnest(set_profile.allowed) AS a(role)
        WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = a.role);
    IF FOUND THEN
        RAISE EXCEPTION 'there is no role "%"', missing USING ERRCODE = '42704';
    END IF;
    INSERT INTO mill.profiles AS p (name, allowed, description)
        VALUES (set_profile.name, coalesce(set_profile.allowed, '{}'), set_profile.description)
        ON CONFLICT (name) DO UPDATE SET allowed = coalesce(set_profile.allowed, p.allowed),
            description = coalesce(set_profile.description, p.description), key = gen_random_uuid();
    PERFORM mill.record_audit('set_profile', 'profile ' || set_profile.name, jsonb_strip_nulls(
        jsonb_build_object('allowed', set_profile.allowed)));
END
$$;
COMMENT ON FUNCTION mill.set_profile IS 'Makes or changes a profile: which roles'' members may have tasks run as it; what is null stays. For the owner of the queue only';

CREATE OR REPLACE FUNCTION mill.drop_profile(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    used text;
BEGIN
    SELECT u.what INTO used FROM (
        SELECT 'task ' || t.id AS what FROM mill.tasks t WHERE t.run_as = drop_profile.name
        UNION ALL
        SELECT format('task "%s" of job "%s"', t.name, t.job) FROM mill.job_tasks t
            WHERE t.run_as = drop_profile.name AND t.disabled_at IS NULL) AS u LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'profile "%" is used by %', name, used USING ERRCODE = '55000',
            HINT = 'Wait for its tasks, or cancel them; change its jobs, or disable them.';
    END IF;
    DELETE FROM mill.profiles p WHERE p.name = drop_profile.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_audit('drop_profile', 'profile ' || name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.drop_profile IS 'Removes a profile that no live task and no job uses; whether there was one. For the owner of the queue only';

CREATE OR REPLACE FUNCTION mill.enqueue_many(
    statements text[],
    params jsonb[] DEFAULT NULL,
    names text[] DEFAULT NULL,
    queue text DEFAULT 'default',
    priority mill.priority DEFAULT NULL,
    due_at timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    retry_interval interval DEFAULT '10 seconds',
    backoff mill.backoff DEFAULT 'exponential',
    jitter boolean DEFAULT true,
    timeout interval DEFAULT NULL,
    mode mill.mode DEFAULT 'transaction',
    at_most_once boolean DEFAULT false,
    external boolean DEFAULT false,
    group_name text DEFAULT NULL,
    run_id bigint DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency integer DEFAULT NULL,
    profile uuid DEFAULT NULL,
    explain boolean DEFAULT false
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    queue_name text := coalesce(enqueue_many.queue, 'default');
    chain bigint[];
    group_priority mill.priority;
    first_state mill.state;
    profile_name text := CASE WHEN profile IS NULL THEN '' ELSE mill.name_of_profile(profile) END;
BEGIN
    IF cardinality(enqueue_many.params) <> cardinality(statements)
        OR cardinality(enqueue_many.names) <> cardinality(statements)
    THEN
        RAISE EXCEPTION 'statements, params and names differ in length' USING ERRCODE = '22023';
    END IF;
    -- As in mill.submit: one question about all, before each is looked at by itself.
    IF EXISTS (SELECT FROM unnest(statements, enqueue_many.params) AS s(statement, params), mill.settings x
        WHERE s.statement IS NULL OR s.params IS NOT NULL OR octet_length(s.statement) > x.statement_limit_bytes
            OR left(s.statement, 1000) !~ '\S')
    THEN
        PERFORM mill.check_statement(s.statement, s.params)
            FROM unnest(statements, enqueue_many.params) AS s(statement, params);
    END IF;
    IF enqueue_many.explain THEN
        PERFORM mill.check_explain(s.statement, enqueue_many.mode) FROM unnest(statements) AS s(statement);
    END IF;
    IF num_nonnulls(enqueue_many.group_name, enqueue_many.concurrency_key, enqueue_many.concurrency) > 0
        OR EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = queue_name)
    THEN
        chain := mill.required_limits(queue_name, enqueue_many.group_name, enqueue_many.run_id,
            enqueue_many.concurrency_key, enqueue_many.concurrency);
        SELECT g.priority INTO group_priority FROM mill.groups g WHERE g.name = enqueue_many.group_name;
    END IF;
    first_state := mill.first_state(enqueue_many.due_at, chain);
    RETURN QUERY
        INSERT INTO mill.tasks (statement, params, name, queue, priority, due_at, state,
            blocking_limit_id, max_attempts, retry_interval, backoff, jitter, timeout, mode, at_most_once,
            external, explain, concurrency_key, group_name, run_id, limits, run_as)
        SELECT s.statement, s.params, s.name, queue_name,
            coalesce(enqueue_many.priority, group_priority, 'normal'),
            coalesce(enqueue_many.due_at, clock_timestamp()), first_state,
            CASE WHEN first_state = 'blocked' THEN chain[1] END,
            coalesce(enqueue_many.max_attempts, CASE WHEN enqueue_many.at_most_once THEN 1 ELSE 3 END),
            coalesce(enqueue_many.retry_interval, '10 seconds'), coalesce(enqueue_many.backoff, 'exponential'),
            coalesce(enqueue_many.jitter, true), enqueue_many.timeout,
            coalesce(enqueue_many.mode, 'transaction'), coalesce(enqueue_many.at_most_once, false),
            coalesce(enqueue_many.external, false), coalesce(enqueue_many.explain, false), enqueue_many.concurrency_key,
            enqueue_many.group_name, enqueue_many.run_id, chain, profile_name
        FROM unnest(statements, enqueue_many.params, enqueue_many.names)
            WITH ORDINALITY AS s(statement, params, name, n)
        ORDER BY s.n
        RETURNING id;
END
$$;
COMMENT ON FUNCTION mill.enqueue_many IS 'Submits many tasks that share their options, in order; returns their ids. See mill.enqueue; profile => mill.profile(''name'') is its run_as';

CREATE OR REPLACE FUNCTION mill.submit(
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
    profile uuid DEFAULT NULL,
    explain boolean DEFAULT NULL,
    OUT id bigint,
    OUT created boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    chain bigint[];
    group_priority mill.priority;
    first_state mill.state;
BEGIN
    queue := coalesce(queue, 'default');
    -- One question instead of three calls: most tasks are nothing of this.
    IF statement IS NULL OR num_nonnulls(params, group_name, concurrency_key, concurrency) > 0
        OR EXISTS (SELECT FROM mill.settings s
            WHERE octet_length(statement) > s.statement_limit_bytes OR left(statement, 1000) !~ '\S')
        OR EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = queue)
    THEN
        PERFORM mill.check_statement(statement, params);
        chain := mill.required_limits(queue, group_name, run_id, concurrency_key, concurrency);
        SELECT g.priority INTO group_priority FROM mill.groups g WHERE g.name = group_name;
    END IF;
    IF explain THEN
        PERFORM mill.check_explain(statement, mode);
    END IF;
    first_state := mill.first_state(due_at, chain);
    id := nextval('mill.tasks_id_seq');
    created := true;
    IF key IS NOT NULL THEN
        LOOP
            -- Waits for another transaction that is about to take the key.
            INSERT INTO mill.dedup_keys AS k (key, task_id) VALUES (key, id) ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            SELECT k.task_id, false INTO id, created FROM mill.dedup_keys k WHERE k.key = submit.key;
            IF FOUND THEN
                RETURN;
            END IF;
            -- The task that held the key finished in between.
            id := nextval('mill.tasks_id_seq');
            created := true;
        END LOOP;
    END IF;
    INSERT INTO mill.tasks (id, statement, params, name, queue, priority, due_at, state, blocking_limit_id,
        max_attempts, retry_interval, backoff, jitter, timeout, mode, at_most_once, external, explain, key,
        concurrency_key, group_name, run_id, limits, run_as)
    VALUES (id, statement, params, name, queue, coalesce(priority, group_priority, 'normal'),
        coalesce(due_at, clock_timestamp()), first_state,
        CASE WHEN first_state = 'blocked' THEN chain[1] END,
        coalesce(max_attempts, CASE WHEN at_most_once THEN 1 ELSE 3 END),
        coalesce(retry_interval, '10 seconds'), coalesce(backoff, 'exponential'),
        coalesce(jitter, true), timeout, coalesce(mode, 'transaction'),
        coalesce(at_most_once, false), coalesce(external, false), coalesce(explain, false), key, concurrency_key, group_name,
        run_id, chain, CASE WHEN profile IS NULL THEN '' ELSE mill.name_of_profile(profile) END);
END
$$;
COMMENT ON FUNCTION mill.submit IS 'mill.enqueue for programs: also says whether the task is new or the live one of its key. profile: of mill.profile';

CREATE OR REPLACE FUNCTION mill.enqueue(
    statement text,
    params jsonb DEFAULT NULL,
    name text DEFAULT NULL,
    queue text DEFAULT 'default',
    priority mill.priority DEFAULT NULL,
    due_at timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    retry_interval interval DEFAULT '10 seconds',
    backoff mill.backoff DEFAULT 'exponential',
    jitter boolean DEFAULT true,
    timeout interval DEFAULT NULL,
    mode mill.mode DEFAULT 'transaction',
    at_most_once boolean DEFAULT false,
    external boolean DEFAULT false,
    key text DEFAULT NULL,
    group_name text DEFAULT NULL,
    run_id bigint DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency integer DEFAULT NULL,
    run_as text DEFAULT NULL,
    explain boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    submitted record;
BEGIN
    SELECT s.id, s.created INTO submitted FROM mill.submit(statement, params, name, queue, priority,
        due_at, max_attempts, retry_interval, backoff, jitter, timeout, mode, at_most_once,
        external, key, group_name, run_id, concurrency_key, concurrency,
        CASE WHEN run_as IS NOT NULL THEN mill.profile(run_as) END, explain) s;
    IF NOT submitted.created THEN
        RAISE NOTICE 'task % is live with key "%", no new task', submitted.id, key;
    END IF;
    RETURN submitted.id;
END
$$;
COMMENT ON FUNCTION mill.enqueue IS 'Submits one task inside the caller''s transaction; returns its id. With a key that a live task has, returns that task''s id and says so in a notice';

-- Finishing --------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.record_attempt(
    task mill.tasks,
    outcome mill.outcome,
    final boolean,
    report jsonb
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, worker_id,
        token, retry_interval, timeout, attempt, outcome, priority, mode, backoff, max_attempts,
        session_pid, final, jitter, at_most_once, external, explain, queue, name, key, concurrency_key,
        group_name, run_id, node, run_as, params, statement, rows, position, sqlstate, message, detail,
        hint, context, notices, result, plan)
    VALUES (clock_timestamp(), task.id, task.enqueued_at, task.due_at, task.claimed_at,
        task.claimed_by, task.token, task.retry_interval, task.timeout, task.attempt,
        record_attempt.outcome, task.priority, task.mode, task.backoff, task.max_attempts,
        task.session_pid, record_attempt.final, task.jitter, task.at_most_once, task.external, task.explain,
        task.queue, task.name, task.key, task.concurrency_key, task.group_name, task.run_id,
        task.node, task.run_as, task.params, task.statement,
        (report->>'rows')::bigint, (report->>'position')::integer, report->>'sqlstate',
        report->>'message', report->>'detail', report->>'hint', report->>'context',
        report->'notices', report->'result', report->'plan');
    IF record_attempt.final AND task.key IS NOT NULL THEN
        DELETE FROM mill.dedup_keys k WHERE k.key = task.key;
    END IF;
    IF record_attempt.final AND task.node IS NOT NULL THEN
        INSERT INTO mill.run_events (run_id, node, outcome, started_at, finished_at, attempts, session_pid, rows, message)
        VALUES (task.run_id, task.node, record_attempt.outcome, task.claimed_at, clock_timestamp(), task.attempt,
            task.session_pid, (report->>'rows')::bigint, report->>'message');
    END IF;
END
$$;
COMMENT ON FUNCTION mill.record_attempt IS 'Writes the history row of an attempt; of a task that ended with it, frees the key and tells the run';

-- One plan for any parameters, and from the primary key: planning takes longer than the function, and
-- a plan made while the table was empty stays in the session's cache when it is full.
CREATE OR REPLACE FUNCTION mill.complete(
    task_ids bigint[],
    claim_tokens uuid[],
    xact xid8,
    ran_until double precision[],
    row_counts bigint[],
    reports jsonb[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = on AS $$
DECLARE
    done bigint[];
    keys text[];
    limited bigint[];
    starts timestamptz[];
    in_runs mill.run_events[];
BEGIN
    -- A statement that ended its transaction sits in another one now. What it committed stays;
    -- this attempt is not a success.
    IF xact <> pg_current_xact_id() THEN
        RAISE EXCEPTION 'the task ended its own transaction' USING ERRCODE = 'MT002';
    END IF;
    WITH gone AS (
        DELETE FROM mill.tasks t
        WHERE t.id = ANY (task_ids) AND t.token = claim_tokens[array_position(task_ids, t.id)]
        RETURNING t.*, array_position(task_ids, t.id) AS n
    ), recorded AS (
        INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, worker_id,
            token, retry_interval, timeout, attempt, outcome, priority, mode, backoff, max_attempts,
            session_pid, final, jitter, at_most_once, external, explain, queue, name, key, concurrency_key,
            group_name, run_id, node, run_as, params, statement, rows, notices, result, plan)
        SELECT least(now() + make_interval(secs => ran_until[n]), clock_timestamp()), id, enqueued_at, due_at,
            claimed_at, claimed_by, token, retry_interval, timeout, attempt, 'succeeded', priority,
            mode, backoff, max_attempts, session_pid, true, jitter, at_most_once, external, explain, queue,
            name, key, concurrency_key, group_name, run_id, node, run_as, params, statement, row_counts[n],
            reports[n]->'notices', reports[n]->'result', reports[n]->'plan'
        FROM gone
        RETURNING attempts.task_id, attempts.key
    )
    SELECT array_agg(r.task_id), array_agg(r.key) FILTER (WHERE r.key IS NOT NULL),
            (SELECT array_agg(g.id) FROM gone g WHERE g.limits IS NOT NULL),
            (SELECT array_agg(g.claimed_at) FROM gone g WHERE g.limits IS NOT NULL),
            (SELECT array_agg(ROW(NULL, g.run_id, g.node, g.claimed_at, clock_timestamp(), row_counts[g.n],
                    g.attempt, g.session_pid, 'succeeded', NULL, mill.first_row(reports[g.n]->'result'))::mill.run_events)
                FROM gone g WHERE g.node IS NOT NULL)
        INTO done, keys, limited, starts, in_runs FROM recorded r;
    IF cardinality(done) IS DISTINCT FROM cardinality(task_ids) THEN
        RAISE EXCEPTION 'task % is no longer claimed with this token', (SELECT min(i)
            FROM unnest(task_ids) AS i WHERE i <> ALL (coalesce(done, '{}'))) USING ERRCODE = 'MT001';
    END IF;
    IF keys IS NOT NULL THEN
        DELETE FROM mill.dedup_keys k WHERE k.key = ANY (keys);
    END IF;
    IF limited IS NOT NULL THEN
        PERFORM mill.release_permits(limited, starts);
    END IF;
    IF in_runs IS NOT NULL THEN
        INSERT INTO mill.run_events (run_id, node, started_at, finished_at, rows, attempts, session_pid, outcome, result)
            SELECT e.run_id, e.node, e.started_at, e.finished_at, e.rows, e.attempts, e.session_pid, e.outcome, e.result
            FROM unnest(in_runs) AS e;
    END IF;
END
$$;
COMMENT ON FUNCTION mill.complete IS 'running -> succeeded, in the transaction of the tasks: all that are named or none. ran_until: seconds from the begin of the transaction to the end of each task, null = now; reports hold notices, result and plan. Opens only with the claims'' tokens, so everybody may call it. MT001: a claim is lost; MT002: not the transaction that was begun for the tasks';

CREATE OR REPLACE FUNCTION mill.run_is_cancelled(task mill.tasks) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cancelled timestamptz;
BEGIN
    IF task.node IS NULL THEN
        RETURN false;
    END IF;
    -- Locked: a cancel of the run comes before this, or finds the task waiting again.
    SELECT r.cancelled_at INTO cancelled FROM mill.runs r WHERE r.id = task.run_id FOR SHARE;
    RETURN cancelled IS NOT NULL;
END
$$;
COMMENT ON FUNCTION mill.run_is_cancelled IS 'Whether the task belongs to a run that is cancelled, so that it is not attempted again';

CREATE OR REPLACE FUNCTION mill.fail(
    task_id bigint,
    claim_token uuid,
    outcome mill.outcome,
    verdict text,
    retry_in interval,
    report jsonb
) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    final boolean;
    next_state mill.state;
BEGIN
    SELECT t.* INTO task FROM mill.tasks t
        WHERE t.id = task_id AND t.token = claim_token FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'lost';
    END IF;
    -- Somebody who asked to cancel does not want to see another attempt.
    IF EXISTS (SELECT FROM mill.cancel_requests r WHERE r.task_id = task.id)
        OR verdict <> 'final' AND mill.run_is_cancelled(task)
    THEN
        outcome := 'cancelled';
        verdict := 'final';
    END IF;
    final := verdict = 'final';
    PERFORM mill.record_attempt(task, outcome, final, report);
    IF task.limits IS NOT NULL THEN
        PERFORM mill.release_permits(ARRAY[task.id], ARRAY[task.claimed_at]);
    END IF;
    IF outcome = 'lost' AND task.node IS NOT NULL THEN
        PERFORM mill.log_reclaimed(task);
    END IF;
    IF final THEN
        DELETE FROM mill.tasks t WHERE t.id = task_id;
        DELETE FROM mill.cancel_requests r WHERE r.task_id = task.id;
        RETURN 'finished';
    END IF;
    next_state := mill.first_state(now() + retry_in, task.limits);
    UPDATE mill.tasks t SET
        state = next_state,
        blocking_limit_id = CASE WHEN next_state = 'blocked' THEN t.limits[1] END,
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
COMMENT ON FUNCTION mill.fail IS 'running -> scheduled | blocked | pending (verdict failure, transient, crash: counted so) or finished (verdict final). Returns lost, retried or finished';

CREATE OR REPLACE FUNCTION mill.release_claim(task_id bigint, claim_token uuid, delay interval)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    next_state mill.state;
BEGIN
    SELECT t.* INTO task FROM mill.tasks t
        WHERE t.id = task_id AND t.token = claim_token FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Looked for after the lock: a cancel takes it first.
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
    next_state := mill.first_state(now() + delay, task.limits);
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
COMMENT ON FUNCTION mill.release_claim IS 'running -> blocked | pending, or scheduled after a wait, with the attempt given back; a task with a cancel request ends as cancelled. False: the claim is lost';

CREATE OR REPLACE FUNCTION mill.reclaim(worker_id uuid, max_count integer DEFAULT 500)
RETURNS TABLE (task_id bigint, released boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    crash_cap integer;
    verdict text;
    ended mill.outcome;
BEGIN
    SELECT s.max_crashes INTO crash_cap FROM mill.settings s;
    FOR task IN
        SELECT t.* FROM mill.tasks t
        -- The backend that ran the attempt is gone: its SQL can do nothing any more. A row whose
        -- finish is about to commit is locked, and skipped.
        WHERE t.state = 'running' AND t.claimed_by = reclaim.worker_id
            AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = t.session_pid
                AND coalesce(a.backend_start = t.session_started_at, true))
        ORDER BY t.id LIMIT max_count FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        ended := CASE WHEN task.at_most_once THEN 'unknown' ELSE 'lost' END;
        verdict := CASE WHEN task.at_most_once OR task.crashes + 1 >= crash_cap THEN 'final' ELSE 'crash' END;
        reclaim.task_id := task.id;
        reclaim.released := mill.fail(task.id, task.token, ended, verdict, '0', jsonb_build_object(
            'message', CASE
                WHEN task.at_most_once THEN 'the worker died; whether the statement ran to its end is not known'
                WHEN verdict = 'final' THEN format('the worker died for the %s. time under this task', crash_cap)
                ELSE 'the worker died' END)) = 'retried';
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.reclaim IS 'Gives back the claims of a dead worker whose backends are gone; a task past max_crashes ends as lost';

-- What a person says about one task --------------------------------------------------------------

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
        -- Rare enough for a notification inside a writing transaction; the beat brings it too.
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
COMMENT ON FUNCTION mill.cancel_task IS 'Part of mill.cancel and mill.cancel_open: what mill.cancel does, without a record of who did it';

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
COMMENT ON FUNCTION mill.cancel IS 'Cancels a task: cancelled (it waited), requested (it runs; its worker stops the statement), finished or not found. running => false leaves one that runs alone';

CREATE OR REPLACE FUNCTION mill.retry(id bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live mill.state;
    last_attempt mill.attempts;
    chain bigint[];
BEGIN
    SELECT t.state, t.limits INTO live, chain FROM mill.tasks t WHERE t.id = retry.id FOR NO KEY UPDATE;
    IF live = 'scheduled' THEN
        UPDATE mill.tasks t SET state = mill.first_state(NULL, chain), blocking_limit_id = chain[1], due_at = now()
            WHERE t.id = retry.id;
        PERFORM mill.record_audit('retry', 'task ' || id, jsonb_build_object('result', 'brought forward'));
        RETURN 'brought forward';
    ELSIF live IS NOT NULL THEN
        RETURN live::text;
    END IF;
    SELECT a.* INTO last_attempt FROM mill.attempts a
        WHERE a.task_id = retry.id AND a.final ORDER BY a.finished_at DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN 'not found';
    ELSIF last_attempt.node IS NOT NULL THEN
        RAISE EXCEPTION 'task % belongs to run %', id, last_attempt.run_id USING ERRCODE = '55000',
            HINT = format('pgmill run retry %s %s', last_attempt.run_id, last_attempt.name);
    END IF;
    IF last_attempt.key IS NOT NULL THEN
        INSERT INTO mill.dedup_keys (key, task_id) VALUES (last_attempt.key, retry.id)
            ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'another live task has the key "%"', last_attempt.key
                USING ERRCODE = '23505', HINT = 'Wait for that task, or cancel it.';
        END IF;
    END IF;
    DELETE FROM mill.cancel_requests r WHERE r.task_id = retry.id;
    chain := mill.required_limits(last_attempt.queue, last_attempt.group_name, last_attempt.run_id,
        last_attempt.concurrency_key);
    INSERT INTO mill.tasks (id, enqueued_at, retry_interval, timeout, priority, mode, backoff,
        attempt, max_attempts, jitter, at_most_once, external, explain, queue, name, key, concurrency_key,
        group_name, run_id, limits, state, blocking_limit_id, run_as, params, statement)
    VALUES (retry.id, last_attempt.enqueued_at, last_attempt.retry_interval, last_attempt.timeout,
        last_attempt.priority, last_attempt.mode, last_attempt.backoff, last_attempt.attempt,
        last_attempt.max_attempts, last_attempt.jitter, last_attempt.at_most_once,
        last_attempt.external, last_attempt.explain, last_attempt.queue, last_attempt.name, last_attempt.key,
        last_attempt.concurrency_key, last_attempt.group_name, last_attempt.run_id, chain,
        mill.first_state(NULL, chain), chain[1], last_attempt.run_as, last_attempt.params,
        last_attempt.statement);
    PERFORM mill.record_audit('retry', 'task ' || id, jsonb_build_object('result', 'retried'));
    RETURN 'retried';
EXCEPTION WHEN unique_violation THEN
    -- Two people retried at the same moment: the other one's task is there.
    IF EXISTS (SELECT FROM mill.tasks t WHERE t.id = retry.id) THEN
        RETURN 'pending';
    END IF;
    RAISE;
END
$$;
COMMENT ON FUNCTION mill.retry IS 'Runs a finished task again under its id, with all its attempts before it (retried), or a scheduled one now (brought forward); else the live state, or not found';

CREATE OR REPLACE FUNCTION mill.cycle(names text[], parents integer[], children integer[]) RETURNS text
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
    -- Each that is left waits for one that is left: from parent to parent the way comes round.
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
COMMENT ON FUNCTION mill.cycle IS 'A path that comes round, as a > b > a; null: there is none. Edges by positions in names (Kahn, Topological sorting of large networks, 1962)';

CREATE OR REPLACE FUNCTION mill.satisfies(state mill.run_task_state, expected mill.expected) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE state WHEN 'succeeded' THEN expected IN ('succeeded', 'finished')
        WHEN 'failed' THEN expected IN ('failed', 'finished')
        WHEN 'cancelled' THEN expected = 'finished' ELSE false END
$$;
COMMENT ON FUNCTION mill.satisfies IS 'Whether a parent that has ended so is what the edge expects; one that could not run never is';

CREATE OR REPLACE FUNCTION mill.evaluate_join(join_mode mill.join_mode, parents integer, satisfied integer, unsatisfied integer)
RETURNS mill.run_task_state
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN parents = 0 THEN 'ready'
        WHEN join_mode = 'all' THEN CASE WHEN unsatisfied > 0 THEN 'upstream_failed'
            WHEN satisfied = parents THEN 'ready' ELSE 'waiting' END
        ELSE CASE WHEN satisfied > 0 THEN 'ready' WHEN unsatisfied = parents THEN 'upstream_failed' ELSE 'waiting' END
    END::mill.run_task_state
$$;
COMMENT ON FUNCTION mill.evaluate_join IS 'What becomes of a waiting task of a run with so many parents, so many of them as expected and so many not';

CREATE OR REPLACE FUNCTION mill.first_row(result jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN octet_length(r.row::text) <= 8192 THEN r.row END
    FROM (SELECT jsonb_object_agg(c.name, result->'rows'->0->(c.place::integer - 1)) AS row
        FROM jsonb_array_elements_text(result->'columns') WITH ORDINALITY AS c(name, place)
        WHERE jsonb_typeof(result->'rows'->0) = 'array') AS r
$$;
COMMENT ON FUNCTION mill.first_row IS 'First row of attempts.result as an object by column; null: none, or above 8 kB';

-- jobs -------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.job_definition(job text) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object('name', j.name, 'description', j.description,
        'category', j.category, 'frequency', j.frequency, 'priority', j.priority, 'enabled', j.disabled_at IS NULL,
        'tasks', (SELECT coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('name', t.name,
                'description', t.description, 'statement', t.statement, 'params', t.params, 'queue', t.queue,
                'priority', t.priority, 'group', t.group_name, 'concurrency_key', t.concurrency_key,
                'max_attempts', t.max_attempts, 'retry_interval', t.retry_interval, 'backoff', t.backoff,
                'jitter', t.jitter, 'timeout', t.timeout, 'mode', t.mode, 'at_most_once', t.at_most_once,
                'external', t.external, 'ignore_failure', t.ignore_failure, 'join', t.join_mode,
                'run_as', nullif(t.run_as, ''), 'after', (SELECT jsonb_agg(jsonb_build_object('task', e.parent, 'expected', e.expected)
                        ORDER BY e.parent)
                    FROM mill.job_edges e
                    WHERE e.job = j.name AND e.child = t.name AND e.disabled_at IS NULL)))
                ORDER BY t.name), '[]')
            FROM mill.visible_job_tasks t WHERE t.job = j.name AND t.disabled_at IS NULL)))
    FROM mill.jobs j WHERE lower(j.name) = lower(job_definition.job)
$$;
COMMENT ON FUNCTION mill.job_definition IS 'What mill.set_job would have to be given for the job as it is; null: there is none';

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
            RAISE EXCEPTION '% is no parameter', param USING ERRCODE = '22023',
                HINT = 'Write {"$param": "name"} for a parameter of the run, {"$result": "task", "column": "name"} for a value that a parent returned.';
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.check_job_params IS 'Raises if params of a job''s task are no array, or a reference in them says anything else';

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
COMMENT ON FUNCTION mill.with_max_attempts IS 'Returns the document with max_attempts in place of its aliases attempts (the same number) and max_retries (one less)';

CREATE OR REPLACE FUNCTION mill.set_job_task(job text, task jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    unknown text;
    parent jsonb;
BEGIN
    task := mill.with_max_attempts(task);
    SELECT k INTO unknown FROM jsonb_object_keys(task) AS k WHERE k <> ALL (ARRAY['name', 'description',
        'statement', 'params', 'queue', 'priority', 'group', 'concurrency_key', 'max_attempts', 'retry_interval',
        'backoff', 'jitter', 'timeout', 'mode', 'at_most_once', 'external', 'ignore_failure', 'join', 'run_as',
        'after']);
    IF FOUND THEN
        RAISE EXCEPTION 'a task has no "%"', unknown USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_statement(task->>'statement', NULL);
    PERFORM mill.check_job_params(task->'params') WHERE task ? 'params';
    IF task ? 'group' AND NOT EXISTS (SELECT FROM mill.groups g WHERE g.name = task->>'group') THEN
        RAISE EXCEPTION 'there is no group "%"', task->>'group' USING ERRCODE = '22023',
            HINT = 'Make it with pgmill group set, or SELECT mill.set_group(…).';
    END IF;
    PERFORM mill.check_profile(task->>'run_as') WHERE task ? 'run_as';
    INSERT INTO mill.job_tasks (job, name, description, statement, params, queue, priority, group_name,
        concurrency_key, max_attempts, retry_interval, backoff, jitter, timeout, mode, at_most_once,
        external, ignore_failure, join_mode, run_as)
    VALUES (set_job_task.job, task->>'name', task->>'description', task->>'statement', task->'params',
        coalesce(task->>'queue', 'default'), (task->>'priority')::mill.priority, task->>'group',
        task->>'concurrency_key',
        coalesce((task->>'max_attempts')::integer, CASE WHEN (task->>'at_most_once')::boolean THEN 1 ELSE 3 END),
        coalesce((task->>'retry_interval')::interval, '10 seconds'),
        coalesce((task->>'backoff')::mill.backoff, 'exponential'),
        coalesce((task->>'jitter')::boolean, true), (task->>'timeout')::interval,
        coalesce((task->>'mode')::mill.mode, 'transaction'),
        coalesce((task->>'at_most_once')::boolean, false), coalesce((task->>'external')::boolean, false),
        coalesce((task->>'ignore_failure')::boolean, false),
        coalesce((task->>'join')::mill.join_mode, 'all'), coalesce(task->>'run_as', ''))
    ON CONFLICT (job, name) DO UPDATE SET description = excluded.description,
        statement = excluded.statement, params = excluded.params, queue = excluded.queue,
        priority = excluded.priority, group_name = excluded.group_name,
        concurrency_key = excluded.concurrency_key, max_attempts = excluded.max_attempts,
        retry_interval = excluded.retry_interval, backoff = excluded.backoff, jitter = excluded.jitter,
        timeout = excluded.timeout, mode = excluded.mode, at_most_once = excluded.at_most_once,
        external = excluded.external, ignore_failure = excluded.ignore_failure,
        join_mode = excluded.join_mode, run_as = excluded.run_as, disabled_at = NULL;
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
COMMENT ON FUNCTION mill.set_job_task IS 'Part of mill.set_job: one task with its edges';

CREATE OR REPLACE FUNCTION mill.check_job(job text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Dear in the eyes of the planner, and cheap: not to be compiled.
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
        RAISE EXCEPTION 'task "%" of job "%" waits for "%", which is no task of it', wrong.child, job,
            wrong.parent USING ERRCODE = '22023', TABLE = job, COLUMN = wrong.child,
            HINT = 'Between tasks of different jobs: pgmill dependency add.';
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
        RAISE EXCEPTION 'task "%" of job "%" takes a result of "%", and does not wait for it', wrong.name, job,
            wrong.parent USING ERRCODE = '22023', TABLE = job, COLUMN = wrong.name;
    END IF;
    SELECT array_agg(t.name::text ORDER BY t.name) INTO names FROM mill.job_tasks t
        WHERE t.job = check_job.job AND t.disabled_at IS NULL;
    WITH place AS (SELECT n.name, n.i::integer FROM unnest(names) WITH ORDINALITY AS n(name, i)),
    edge AS (
        SELECT e.parent::text, e.child::text FROM mill.job_edges e
            WHERE e.job = check_job.job AND e.disabled_at IS NULL
        UNION SELECT d.parent, d.child FROM mill.dependencies d WHERE d.disabled_at IS NULL
    )
    SELECT mill.cycle(names, array_agg(p.i), array_agg(c.i)) INTO round_trip
        FROM edge e JOIN place p ON p.name = e.parent JOIN place c ON c.name = e.child;
    IF round_trip IS NOT NULL THEN
        RAISE EXCEPTION 'tasks of job "%" wait for each other: %', job, round_trip
            USING ERRCODE = '22023', TABLE = job, COLUMN = split_part(round_trip, ' > ', 1);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_job IS 'Raises if a job cannot be run: unknown parents, results of tasks that it does not wait for, tasks that wait for each other';

CREATE OR REPLACE FUNCTION mill.put_job(name text, tasks jsonb, description text, category text, frequency text,
    priority mill.priority, enabled boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    before jsonb := mill.job_definition(put_job.name);
    kept text;
    task jsonb;
    problem text;
    hint text;
    names text[];
BEGIN
    IF jsonb_typeof(tasks) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'tasks is no JSON array' USING ERRCODE = '22023';
    END IF;
    SELECT j.name INTO kept FROM mill.jobs j WHERE lower(j.name) = lower(put_job.name) FOR UPDATE;
    IF FOUND THEN
        UPDATE mill.jobs j SET description = put_job.description, frequency = put_job.frequency,
                category = put_job.category, priority = put_job.priority,
                disabled_at = CASE enabled WHEN true THEN NULL WHEN false THEN coalesce(j.disabled_at, now())
                    ELSE j.disabled_at END
            WHERE j.name = kept;
    ELSE
        INSERT INTO mill.jobs (name, description, category, frequency, priority, disabled_at)
            VALUES (name, description, category, frequency, priority, CASE WHEN NOT enabled THEN now() END);
        kept := name;
    END IF;
    SELECT array_agg(t.value->>'name') INTO names FROM jsonb_array_elements(tasks) AS t;
    UPDATE mill.job_tasks t SET disabled_at = now()
        WHERE t.job = kept AND t.disabled_at IS NULL AND t.name <> ALL (coalesce(names, '{}'));
    UPDATE mill.job_edges e SET disabled_at = now() WHERE e.job = kept AND e.disabled_at IS NULL;
    SELECT n INTO problem FROM unnest(names) AS n GROUP BY n HAVING count(*) > 1 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job "%" has two tasks "%"', kept, problem
            USING ERRCODE = '22023', TABLE = kept, COLUMN = coalesce(problem, '');
    END IF;
    FOR task IN SELECT t.value FROM jsonb_array_elements(tasks) AS t LOOP
        BEGIN
            PERFORM mill.set_job_task(kept, task);
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
            GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
            RAISE EXCEPTION 'task "%" of job "%": %', task->>'name', kept, problem
                USING ERRCODE = '22023', TABLE = kept, COLUMN = coalesce(task->>'name', ''),
                    HINT = coalesce(nullif(hint, ''), 'docs/runs.md says what a task of a job can have.');
        END;
    END LOOP;
    PERFORM mill.check_job(kept);
    IF mill.job_definition(kept) IS NOT DISTINCT FROM before THEN
        RETURN false;
    END IF;
    UPDATE mill.jobs j SET changed_at = now(), changed_by = session_user,
        version = j.version + (before IS NOT NULL)::integer WHERE j.name = kept;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.put_job IS 'Part of mill.set_job and mill.put_own_job: all of a job';

CREATE OR REPLACE FUNCTION mill.set_job(name text, tasks jsonb, description text DEFAULT NULL,
    frequency text DEFAULT NULL, priority mill.priority DEFAULT NULL, enabled boolean DEFAULT NULL,
    category text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner text;
    changed boolean;
BEGIN
    SELECT s.name INTO owner FROM mill.schedules s
        WHERE s.own_job AND s.removed_at IS NULL AND lower(s.jobs[1]) = lower(set_job.name) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job "%" is the statement of schedule "%"', name, owner USING ERRCODE = '55000',
            HINT = 'Change it where the schedule is declared, or take another name.';
    END IF;
    UPDATE mill.jobs j SET of_schedule = false WHERE lower(j.name) = lower(set_job.name) AND j.of_schedule;
    changed := mill.put_job(name, tasks, description, category, frequency, priority, enabled);
    IF changed THEN
        PERFORM mill.record_audit('set_job', 'job ' || j.name, jsonb_build_object('version', j.version))
            FROM mill.jobs j WHERE lower(j.name) = lower(set_job.name);
    END IF;
    RETURN changed;
END
$$;
COMMENT ON FUNCTION mill.set_job IS 'Makes a job what is said here, all of it: tasks that are not named any more are disabled, nothing is deleted; enabled null leaves it as it is. Whether that changed anything. tasks: [{"name", "statement", "params", "queue", "priority", "group", "concurrency_key", "max_attempts", "retry_interval", "backoff", "jitter", "timeout", "mode", "at_most_once", "external", "ignore_failure", "join", "run_as", "description", "after": ["parent", {"task": "parent", "expected": "failed"}]}]';

CREATE OR REPLACE FUNCTION mill.enable_job(job text, enabled boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.jobs j SET disabled_at = CASE WHEN enabled THEN NULL ELSE coalesce(j.disabled_at, now()) END,
            version = j.version + (enabled <> (j.disabled_at IS NULL))::integer,
            changed_at = now(), changed_by = session_user
        WHERE lower(j.name) = lower(enable_job.job);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- That of a schedule goes with it.
    PERFORM mill.record_audit('enable_job', 'job ' || j.name, jsonb_build_object('enabled', enabled))
        FROM mill.jobs j WHERE lower(j.name) = lower(enable_job.job) AND NOT j.of_schedule;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.enable_job IS 'Lets a job start runs, or not; false: there is none of that name';

CREATE OR REPLACE FUNCTION mill.set_dependency(child text, parent text,
    expected mill.expected DEFAULT 'succeeded') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names text[];
    round_trip text;
BEGIN
    -- Two that would close a circle only together take turns.
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
    SELECT mill.cycle(names, array_agg(p.i), array_agg(c.i)) INTO round_trip
        FROM mill.dependencies d JOIN place p ON p.name = d.parent JOIN place c ON c.name = d.child
        WHERE d.disabled_at IS NULL;
    IF round_trip IS NOT NULL THEN
        RAISE EXCEPTION 'the tasks would wait for each other: %', round_trip USING ERRCODE = '22023';
    END IF;
    PERFORM mill.record_audit('set_dependency', format('dependency %s > %s', parent, child), jsonb_build_object('expected', expected));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.set_dependency IS 'In every run that has both tasks, the child waits for the parent; whether that is new';

CREATE OR REPLACE FUNCTION mill.drop_dependency(child text, parent text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.dependencies d SET disabled_at = now(), changed_at = now(), changed_by = session_user
        WHERE d.child = drop_dependency.child AND d.parent = drop_dependency.parent AND d.disabled_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_audit('drop_dependency', format('dependency %s > %s', parent, child));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.drop_dependency IS 'Disables a dependency; false: there is none';

CREATE OR REPLACE VIEW mill.lineage AS
    SELECT d.child, d.parent, d.expected, NULL::text AS job FROM mill.dependencies d WHERE d.disabled_at IS NULL
    UNION ALL
    SELECT e.child, e.parent, e.expected, e.job FROM mill.job_edges e JOIN mill.jobs j ON j.name = e.job
    WHERE e.disabled_at IS NULL AND j.disabled_at IS NULL;
COMMENT ON VIEW mill.lineage IS 'Which task waits for which: everywhere (job null), or in one job';

CREATE OR REPLACE FUNCTION mill.reach(origin text, upwards boolean) RETURNS TABLE (task text, distance integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Dear in the eyes of the planner, and cheap: not to be compiled.
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
    -- In the order of the distance. Jobs that are never run together may wait for each other both ways.
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
COMMENT ON FUNCTION mill.reach IS 'Every task that this one waits for (or that waits for it), also through others, and how far away it is: 1 = directly';

CREATE OR REPLACE FUNCTION mill.upstream(name text) RETURNS TABLE (task text, distance integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.task, r.distance FROM mill.reach(name, true) AS r
$$;
COMMENT ON FUNCTION mill.upstream IS 'Tasks that this one waits for, and those that they wait for';

CREATE OR REPLACE FUNCTION mill.downstream(name text) RETURNS TABLE (task text, distance integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.task, r.distance FROM mill.reach(name, false) AS r
$$;
COMMENT ON FUNCTION mill.downstream IS 'Tasks that wait for this one, and those that wait for them';

-- runs -------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.runnable_jobs(jobs text[]) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_nestloop = on AS $$
DECLARE
    wanted text[];
    wrong text;
BEGIN
    SELECT array_agg(w.name ORDER BY w.place) INTO wanted FROM (
        SELECT lower(btrim(j.name)) AS name, min(j.place) AS place
        FROM unnest(jobs) WITH ORDINALITY AS j(name, place) WHERE btrim(j.name) <> '' GROUP BY 1) AS w;
    IF wanted IS NULL THEN
        RAISE EXCEPTION 'no job is named' USING ERRCODE = '22023';
    END IF;
    SELECT w INTO wrong FROM unnest(wanted) AS w WHERE NOT EXISTS (SELECT FROM mill.jobs j
        WHERE lower(j.name) = w AND j.disabled_at IS NULL) LIMIT 1;
    IF FOUND THEN
        IF EXISTS (SELECT FROM mill.jobs j WHERE lower(j.name) = wrong) THEN
            RAISE EXCEPTION 'job "%" is disabled', wrong USING ERRCODE = '22023', HINT = 'pgmill job enable';
        END IF;
        RAISE EXCEPTION 'there is no job "%"', wrong USING ERRCODE = '22023',
            HINT = 'pgmill job list shows those that there are.';
    END IF;
    -- As they are written where they are declared.
    RETURN (SELECT array_agg(j.name::text ORDER BY array_position(wanted, lower(j.name)))
        FROM mill.jobs j WHERE lower(j.name) = ANY (wanted));
END
$$;
COMMENT ON FUNCTION mill.runnable_jobs IS 'Part of mill.make_run: the jobs of these names, in any case, as they are written where they are declared. Raises if one is not there, or disabled. By index, which mill.make_run would not take';

CREATE OR REPLACE FUNCTION mill.make_run(jobs text[], params jsonb, schedule mill.schedules,
    fire_at timestamptz, reason text, OUT run_id bigint, OUT dropped text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Statistics may know nothing of a job that has just been made: two large sets are not to be compared
-- row by row.
SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    wanted text[];
    count integer;
    offered jsonb := '{}';
BEGIN
    IF jsonb_typeof(params) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'params is no JSON object' USING ERRCODE = '22023';
    END IF;
    wanted := mill.runnable_jobs(jobs);
    IF schedule.id IS NOT NULL THEN
        offered := jsonb_build_object('schedule', schedule.name, 'reason', reason,
            'fire_at', to_char(fire_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
    END IF;
    INSERT INTO mill.runs (jobs, params, schedule_id, fire_at, reason)
        VALUES (wanted, params, schedule.id, fire_at, reason) RETURNING runs.id INTO run_id;

    WITH chosen AS MATERIALIZED (
        -- A task that several jobs have is in once, as the one says that gives it the highest priority.
        SELECT DISTINCT ON (t.name) t.*, coalesce(t.priority, j.priority, g.priority) AS chosen_priority
        FROM mill.jobs j JOIN mill.job_tasks t ON t.job = j.name LEFT JOIN mill.groups g ON g.name = t.group_name
        -- Of both tables by their indexes.
        WHERE j.name = ANY (wanted) AND t.job = ANY (wanted) AND t.disabled_at IS NULL
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
        -- What a job says about an edge is nearer than what holds everywhere.
        ORDER BY e.child, e.parent, e.place
    ), edges AS (
        INSERT INTO mill.run_edges (run_id, parent, child, expected)
        SELECT run_id, e.parent, e.child, e.expected FROM edge e WHERE e.parent IS NOT NULL
    ), put AS (
        INSERT INTO mill.run_tasks (run_id, node, name, job, statement, params, takes_results, queue, priority,
            group_name, concurrency_key, max_attempts, retry_interval, backoff, jitter, timeout, mode,
            at_most_once, external, ignore_failure, join_mode, run_as, parents, state)
        SELECT run_id, n.node, n.name, n.job, n.statement, mill.fill_params(n.params, offered || params),
            coalesce(n.params @? '$[*]."$result"', false), n.queue, n.chosen_priority, n.group_name,
            n.concurrency_key,
            CASE WHEN n.at_most_once THEN 1 ELSE coalesce(schedule.max_attempts, n.max_attempts) END,
            coalesce(schedule.retry_interval, n.retry_interval), n.backoff, n.jitter, n.timeout, n.mode,
            n.at_most_once, n.external, n.ignore_failure, n.join_mode, n.run_as, coalesce(p.parents, 0),
            CASE WHEN p.parents > 0 THEN 'waiting' ELSE 'ready' END::mill.run_task_state
        FROM numbered n LEFT JOIN (SELECT e.child, count(e.parent)::integer AS parents FROM edge e
            GROUP BY e.child) AS p ON p.child = n.node
        ORDER BY n.node RETURNING 1
    )
    SELECT (SELECT count(*) FROM put), (SELECT array_agg(e.parent_name || ' > ' || e.child_name
            ORDER BY e.parent_name, e.child_name) FROM edge e WHERE e.parent IS NULL)
        INTO count, dropped;
    IF count = 0 THEN
        RAISE EXCEPTION 'there is no task in %', array_to_string(wanted, ', ') USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_run(run_id, params);
    -- What is ready need not wait for somebody to look; what is left of very much does.
    UPDATE mill.runs r SET tasks = count, open = count, dropped = make_run.dropped,
        needs_rescan = mill.release_ready(run_id, NULL, true, 2000) = 2000 WHERE r.id = run_id;
    INSERT INTO mill.run_events (run_id) VALUES (run_id);
    IF dropped IS NOT NULL THEN
        RAISE NOTICE 'edges to tasks that are not in this run are left out: %', array_to_string(dropped, ', ');
    END IF;
END
$$;
COMMENT ON FUNCTION mill.make_run IS 'Part of mill.start_run and mill.fire: a frozen copy of these jobs, merged';

CREATE OR REPLACE FUNCTION mill.start_run(jobs text[], params jsonb DEFAULT '{}', OUT run_id bigint,
    OUT dropped text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT r.run_id, r.dropped INTO start_run.run_id, start_run.dropped
        FROM mill.make_run(start_run.jobs, start_run.params, NULL, NULL, NULL) AS r;
    -- Programs submit runs all day; who does it in somebody's name does what a person asked for.
    IF current_setting('mill.actor', true) <> '' THEN
        PERFORM mill.record_audit('start_run', 'run ' || start_run.run_id, jsonb_build_object('jobs', start_run.jobs));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.start_run IS 'Starts a run: a frozen copy of these jobs, merged. Names in any case. params: values of {"$param": …}. dropped: edges to tasks that are in none of the jobs';

CREATE OR REPLACE FUNCTION mill.fill_params(params jsonb, given jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    missing text;
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
    RETURN (SELECT jsonb_agg(CASE WHEN jsonb_typeof(p.value) = 'object' AND p.value ? '$param'
            THEN given->(p.value->>'$param') ELSE p.value END ORDER BY p.place)
        FROM jsonb_array_elements(params) WITH ORDINALITY AS p(value, place));
END
$$;
COMMENT ON FUNCTION mill.fill_params IS 'params with the values of {"$param": name} in them';

CREATE OR REPLACE FUNCTION mill.fill_results(run_id bigint, params jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_agg(CASE WHEN jsonb_typeof(p.value) = 'object' AND p.value ? '$result'
            THEN coalesce((SELECT t.result->(p.value->>'column') FROM mill.run_tasks t
                WHERE t.run_id = fill_results.run_id AND t.name = p.value->>'$result'), 'null')
            ELSE p.value END ORDER BY p.place)
    FROM jsonb_array_elements(params) WITH ORDINALITY AS p(value, place)
$$;
COMMENT ON FUNCTION mill.fill_results IS 'params with the values of {"$result": task, "column": name} in them; null where the task returned no such value';

CREATE OR REPLACE FUNCTION mill.check_run(run_id bigint, given jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
-- Dear in the eyes of the planner, and cheap: not to be compiled.
SET enable_nestloop = off SET jit = off AS $$
DECLARE
    wrong record;
    round_trip text;
    names text[];
BEGIN
    SELECT g.name INTO wrong FROM jsonb_object_keys(given) AS g(name) WHERE NOT EXISTS (
        SELECT FROM mill.run_tasks t JOIN mill.job_tasks j ON j.job = t.job AND j.name = t.name
            CROSS JOIN LATERAL jsonb_array_elements(j.params) AS p
        WHERE t.run_id = check_run.run_id AND p.value->>'$param' = g.name) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'no task of these jobs has a parameter "%"', wrong.name USING ERRCODE = '22023';
    END IF;
    SELECT t.name, p.value->>'$result' AS parent INTO wrong
        FROM mill.run_tasks t CROSS JOIN LATERAL jsonb_array_elements(t.params) AS p
        WHERE t.run_id = check_run.run_id AND t.takes_results AND p.value ? '$result' AND NOT EXISTS (
            SELECT FROM mill.run_tasks p2 JOIN mill.run_edges e ON e.run_id = p2.run_id AND e.parent = p2.node
            WHERE p2.run_id = t.run_id AND p2.name = p.value->>'$result' AND e.child = t.node) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" takes a result of "%", and does not wait for it', wrong.name, wrong.parent
            USING ERRCODE = '22023';
    END IF;
    SELECT array_agg(t.name::text ORDER BY t.node) INTO names FROM mill.run_tasks t
        WHERE t.run_id = check_run.run_id;
    SELECT mill.cycle(names, array_agg(e.parent::integer), array_agg(e.child::integer)) INTO round_trip
        FROM mill.run_edges e WHERE e.run_id = check_run.run_id;
    IF round_trip IS NOT NULL THEN
        RAISE EXCEPTION 'the tasks wait for each other: %', round_trip USING ERRCODE = '22023',
            HINT = 'pgmill lineage shows which job or dependency says so.';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_run IS 'Part of mill.start_run: raises if the run could not come to an end, or was given a parameter that no task has';

CREATE OR REPLACE FUNCTION mill.recount_dependencies(run_id bigint, nodes bigint[]) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_nestloop = off SET jit = off AS $$
DECLARE
    upstream_failed integer;
BEGIN
    WITH counted AS MATERIALIZED (
        SELECT c.node, c.join_mode, count(e.parent)::integer AS parents,
            count(*) FILTER (WHERE mill.satisfies(p.state, e.expected))::integer AS satisfied,
            count(*) FILTER (WHERE p.node IS NOT NULL AND NOT mill.satisfies(p.state, e.expected))::integer AS unsatisfied
        FROM mill.run_tasks c LEFT JOIN mill.run_edges e ON e.run_id = c.run_id AND e.child = c.node
            -- A parent that has ended and will not tell this child any more.
            LEFT JOIN mill.run_tasks p ON p.run_id = e.run_id AND p.node = e.parent
                AND p.state NOT IN ('waiting', 'ready', 'released') AND (NOT p.pending_propagation OR p.propagated_to >= c.node)
        WHERE c.run_id = recount_dependencies.run_id AND c.state = 'waiting' AND (nodes IS NULL OR c.node = ANY (nodes))
        GROUP BY c.node, c.join_mode
    ), evaluated AS (
        UPDATE mill.run_tasks t SET parents = c.parents, satisfied = c.satisfied, unsatisfied = c.unsatisfied,
            state = mill.evaluate_join(c.join_mode, c.parents, c.satisfied, c.unsatisfied),
            pending_propagation = mill.evaluate_join(c.join_mode, c.parents, c.satisfied, c.unsatisfied) = 'upstream_failed',
            finished_at = CASE WHEN mill.evaluate_join(c.join_mode, c.parents, c.satisfied, c.unsatisfied) = 'upstream_failed'
                THEN clock_timestamp() END
        FROM counted c WHERE t.run_id = recount_dependencies.run_id AND t.node = c.node
        RETURNING t.state
    )
    SELECT count(*) INTO upstream_failed FROM evaluated j WHERE j.state = 'upstream_failed';
    RETURN upstream_failed;
END
$$;
COMMENT ON FUNCTION mill.recount_dependencies IS 'Counts from the edges what mill.advance_run counts on the way, for tasks that wait (nodes null: all), and judges them; returns how many became upstream_failed';

CREATE OR REPLACE FUNCTION mill.propagate_completion(run_id bigint, parents bigint[], search boolean, max_count integer,
    OUT edges_propagated integer, OUT ready bigint[], OUT upstream_failed bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    last_parent bigint;
    last_child bigint;
BEGIN
    -- A parent that has ended is not waiting, so no row is written twice in this statement. The edges
    -- come in the order of their parents: a nested loop is the only way to run a lateral limit. A run
    -- may be larger than all that statistics know of, and plans are older than it: rows are looked up
    -- by primary key from inside a lateral join, which cannot be turned round, and written by their
    -- place, which nobody else changes while the run's row is locked. State as text fits no index.
    WITH source AS MATERIALIZED (
        SELECT w.place, n.node, w.state, w.propagated_to FROM (
            SELECT p.node FROM unnest(parents) AS p(node)
            UNION
            (SELECT t.node FROM mill.run_tasks t WHERE search AND t.run_id = propagate_completion.run_id AND t.pending_propagation
            ORDER BY t.node LIMIT max_count)) AS n
        CROSS JOIN LATERAL (SELECT t.ctid AS place, t.state, t.propagated_to FROM mill.run_tasks t
            WHERE t.run_id = propagate_completion.run_id AND t.node = n.node LIMIT 1) AS w
        ORDER BY n.node
    ), edge AS MATERIALIZED (
        SELECT t.node AS parent, e.child, mill.satisfies(t.state, e.expected) AS met
        FROM source t CROSS JOIN LATERAL (SELECT x.child, x.expected FROM mill.run_edges x
            WHERE x.run_id = propagate_completion.run_id AND x.parent = t.node AND x.child > t.propagated_to
            ORDER BY x.child LIMIT max_count) AS e
        LIMIT max_count
    ), counted AS MATERIALIZED (
        SELECT w.place, n.satisfied, n.unsatisfied FROM (
            SELECT e.child, count(*) FILTER (WHERE e.met)::integer AS satisfied,
                count(*) FILTER (WHERE NOT e.met)::integer AS unsatisfied
            FROM edge e GROUP BY e.child) AS n
        CROSS JOIN LATERAL (SELECT c.ctid AS place FROM mill.run_tasks c
            WHERE c.run_id = propagate_completion.run_id AND c.node = n.child AND c.state::text = 'waiting' LIMIT 1) AS w
    ), evaluated AS (
        UPDATE mill.run_tasks c SET satisfied = c.satisfied + n.satisfied, unsatisfied = c.unsatisfied + n.unsatisfied,
            state = mill.evaluate_join(c.join_mode, c.parents, c.satisfied + n.satisfied, c.unsatisfied + n.unsatisfied),
            pending_propagation = mill.evaluate_join(c.join_mode, c.parents, c.satisfied + n.satisfied, c.unsatisfied + n.unsatisfied) = 'upstream_failed',
            finished_at = CASE WHEN mill.evaluate_join(c.join_mode, c.parents, c.satisfied + n.satisfied, c.unsatisfied + n.unsatisfied)
                = 'upstream_failed' THEN clock_timestamp() END
        FROM counted n WHERE c.ctid = n.place
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
            (SELECT array_agg(j.node) FILTER (WHERE j.state = 'ready') FROM evaluated j),
            (SELECT array_agg(j.node) FILTER (WHERE j.state = 'upstream_failed') FROM evaluated j)
        INTO edges_propagated, last_parent, last_child, ready, upstream_failed FROM last l;
    IF edges_propagated = max_count THEN
        UPDATE mill.run_tasks p SET propagated_to = last_child
            WHERE p.run_id = propagate_completion.run_id AND p.node = last_parent;
    END IF;
END
$$;
COMMENT ON FUNCTION mill.propagate_completion IS 'Part of mill.advance_run: children learn how these parents ended (search: and others that have not told all), up to so many edges. edges_propagated = max_count: there may be more. Which children are ready now, and which became upstream_failed and have children to tell themselves';

CREATE OR REPLACE FUNCTION mill.release_ready(run_id bigint, nodes bigint[], search boolean, max_count integer)
RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    released integer;
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT w.* FROM (
            SELECT r.node FROM unnest(nodes) AS r(node)
            UNION
            (SELECT t.node FROM mill.run_tasks t
            WHERE search AND t.run_id = release_ready.run_id AND t.state = 'ready' ORDER BY t.node LIMIT max_count)
            ORDER BY node LIMIT max_count) AS n
        CROSS JOIN LATERAL (SELECT t.ctid AS place, t.* FROM mill.run_tasks t
            WHERE t.run_id = release_ready.run_id AND t.node = n.node AND t.state::text = 'ready' LIMIT 1) AS w
        ORDER BY n.node
    ), task AS MATERIALIZED (
        SELECT p.*, coalesce(p.task_id, nextval('mill.tasks_id_seq')) AS id,
            CASE WHEN num_nonnulls(p.group_name, p.concurrency_key) > 0
                OR EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = p.queue)
                THEN mill.required_limits(p.queue, p.group_name, p.run_id, p.concurrency_key) END AS limits
        FROM picked p
    ), put AS (
        INSERT INTO mill.tasks (id, name, run_id, node, statement, params, queue, priority, group_name,
            concurrency_key, limits, state, blocking_limit_id, attempt, max_attempts, retry_interval, backoff, jitter,
            timeout, mode, at_most_once, external, run_as)
        SELECT t.id, t.name, t.run_id, t.node, t.statement,
            CASE WHEN t.takes_results THEN mill.fill_results(t.run_id, t.params) ELSE t.params END, t.queue,
            coalesce(t.priority, 'normal'), t.group_name, t.concurrency_key, t.limits,
            mill.first_state(NULL, t.limits), t.limits[1], t.attempts, t.max_attempts, t.retry_interval,
            t.backoff, t.jitter, t.timeout, t.mode, t.at_most_once, t.external, t.run_as
        FROM task t
    ), moved AS (
        UPDATE mill.run_tasks r SET state = 'released', task_id = t.id
        FROM task t WHERE r.ctid = t.place RETURNING 1
    )
    SELECT count(*) INTO released FROM moved;
    RETURN released;
END
$$;
COMMENT ON FUNCTION mill.release_ready IS 'Part of mill.advance_run: ready -> released for these tasks of a run (search: and others), up to so many; returns how many';

CREATE OR REPLACE FUNCTION mill.cancel_open(run_id bigint, kill boolean, max_count integer, OUT waited integer,
    OUT more boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live integer;
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT t.node FROM mill.run_tasks t
        WHERE t.run_id = cancel_open.run_id AND t.state IN ('waiting', 'ready') LIMIT max_count
    )
    UPDATE mill.run_tasks t SET state = 'cancelled', finished_at = clock_timestamp()
        FROM picked p WHERE t.run_id = cancel_open.run_id AND t.node = p.node;
    GET DIAGNOSTICS waited = ROW_COUNT;
    -- A task that somebody holds is being claimed, or is about to be attempted again and waits for this
    -- run's row: it is for the next pass. Each tells of its end by an event, as those do that run.
    SELECT count(mill.cancel_task(s.id, running => false)) INTO live FROM (
        SELECT t.id FROM mill.run_tasks r JOIN mill.tasks t ON t.id = r.task_id
        WHERE r.run_id = cancel_open.run_id AND r.state = 'released' AND t.state <> 'running'
        ORDER BY t.id LIMIT max_count FOR NO KEY UPDATE OF t SKIP LOCKED) AS s;
    IF kill THEN
        INSERT INTO mill.cancel_requests (task_id)
            SELECT t.id FROM mill.run_tasks r JOIN mill.tasks t ON t.id = r.task_id
            WHERE r.run_id = cancel_open.run_id AND r.state = 'released' AND t.state = 'running'
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            PERFORM pg_notify('mill', 'cancel');
        END IF;
    END IF;
    more := waited = max_count OR live > 0 OR EXISTS (
        SELECT FROM mill.run_tasks r JOIN mill.tasks t ON t.id = r.task_id
        WHERE r.run_id = cancel_open.run_id AND r.state = 'released' AND t.state <> 'running');
END
$$;
COMMENT ON FUNCTION mill.cancel_open IS 'Part of mill.advance_run, for a cancelled run: what waits is cancelled, and with kill what runs. waited: how many never got into the queue; more: call again';

CREATE OR REPLACE FUNCTION mill.end_run(run_id bigint) RETURNS mill.run_state
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended mill.runs;
BEGIN
    UPDATE mill.runs r SET tasks = n.tasks, open = 0, succeeded = n.succeeded, failed = n.failed, ignored = n.ignored,
            cancelled = n.cancelled, upstream_failed = n.upstream_failed, finished_at = clock_timestamp(),
            state = CASE WHEN r.cancelled_at IS NOT NULL THEN 'cancelled' WHEN n.failed > 0 THEN 'failed'
                WHEN n.cancelled > 0 THEN 'cancelled' ELSE 'succeeded' END::mill.run_state
        FROM (SELECT count(*) AS tasks, count(*) FILTER (WHERE t.state = 'succeeded') AS succeeded,
                count(*) FILTER (WHERE t.state = 'failed' AND NOT t.ignore_failure) AS failed,
                count(*) FILTER (WHERE t.state = 'failed' AND t.ignore_failure) AS ignored,
                count(*) FILTER (WHERE t.state = 'cancelled') AS cancelled,
                count(*) FILTER (WHERE t.state = 'upstream_failed') AS upstream_failed
            FROM mill.run_tasks t WHERE t.run_id = end_run.run_id) AS n
        WHERE r.id = end_run.run_id RETURNING r.* INTO ended;
    DELETE FROM mill.limits l WHERE l.kind = 'group' AND l.run_id = end_run.run_id;
    IF ended.schedule_id IS NOT NULL THEN
        PERFORM mill.log_completed(ended);
    END IF;
    RETURN ended.state;
END
$$;
COMMENT ON FUNCTION mill.end_run IS 'Part of mill.advance_run: cancelled, else failed, else succeeded';

CREATE OR REPLACE FUNCTION mill.advance_run(run_id bigint, OUT released integer, OUT ended mill.run_state,
    OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    -- So that no statement takes long, whatever the run's size.
    max_count CONSTANT integer := 2000;
    run mill.runs;
    events mill.run_events[];
    added bigint[];
    to_propagate bigint[];
    ready bigint[];
    step record;
    unfinished boolean;
BEGIN
    released := 0;
    more := false;
    -- As with a claim: WAL is ordered, so what a release led to does not survive without the release.
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = advance_run.run_id FOR NO KEY UPDATE;
    -- From here on nobody else advances this run; each statement sees what those before have done.
    WITH taken AS (
        DELETE FROM mill.run_events e WHERE e.id = ANY (ARRAY(SELECT x.id FROM mill.run_events x
            WHERE x.run_id = advance_run.run_id ORDER BY x.id LIMIT max_count))
        RETURNING e AS event
    )
    SELECT array_agg(t.event), array_agg((t.event).node) FILTER (WHERE (t.event).outcome IS NULL
            AND (t.event).node IS NOT NULL) INTO events, added FROM taken t;
    IF run.state IS DISTINCT FROM 'running' THEN
        RETURN;
    END IF;
    WITH ended AS MATERIALIZED (
        SELECT e.*, w.place FROM unnest(events) AS e CROSS JOIN LATERAL (
            SELECT t.ctid AS place FROM mill.run_tasks t
            WHERE t.run_id = run.id AND t.node = e.node AND t.state::text = 'released' LIMIT 1) AS w
        WHERE e.outcome IS NOT NULL
    ), moved AS (
        UPDATE mill.run_tasks t SET
            state = CASE e.outcome WHEN 'succeeded' THEN 'succeeded' WHEN 'cancelled' THEN 'cancelled'
                ELSE 'failed' END::mill.run_task_state,
            outcome = e.outcome, pending_propagation = true, propagated_to = 0, attempts = e.attempts, started_at = e.started_at,
            finished_at = e.finished_at, rows = e.rows, session_pid = e.session_pid, message = e.message, result = e.result
        FROM ended e WHERE t.ctid = e.place
        RETURNING t.node
    )
    SELECT array_agg(m.node) INTO to_propagate FROM moved m;
    run.open := run.open - coalesce(cardinality(to_propagate), 0);
    IF added IS NOT NULL THEN
        run.tasks := run.tasks + cardinality(added);
        run.open := run.open + cardinality(added) - mill.recount_dependencies(run.id, added || ARRAY(
            SELECT e.child FROM mill.run_edges e WHERE e.run_id = run.id AND e.parent = ANY (added)));
        run.needs_rescan := true;
    END IF;
    IF run.cancelled_at IS NOT NULL THEN
        SELECT c.waited, c.more INTO step FROM mill.cancel_open(run.id, run.kill, max_count) AS c;
        run.open := run.open - step.waited;
        run.needs_rescan := true;
        more := step.more;
    ELSE
        LOOP
            SELECT t.* INTO step FROM mill.propagate_completion(run.id, to_propagate, run.needs_rescan, max_count) AS t;
            ready := ready || step.ready;
            to_propagate := step.upstream_failed;
            run.open := run.open - coalesce(cardinality(to_propagate), 0);
            unfinished := step.edges_propagated = max_count OR coalesce(cardinality(ready), 0) >= max_count;
            EXIT WHEN unfinished OR to_propagate IS NULL;
        END LOOP;
        released := mill.release_ready(run.id, ready, run.needs_rescan, max_count);
        run.needs_rescan := unfinished OR released = max_count;
        more := run.needs_rescan;
    END IF;
    more := more OR coalesce(cardinality(events), 0) = max_count;
    UPDATE mill.runs r SET tasks = run.tasks, open = run.open, needs_rescan = run.needs_rescan
        WHERE r.id = run.id AND (r.tasks, r.open, r.needs_rescan) <> (run.tasks, run.open, run.needs_rescan);
    IF more THEN
        -- Whoever does this may die before the next pass: a look has to find what is left.
        INSERT INTO mill.run_events (run_id) VALUES (run.id);
    ELSIF run.open = 0 THEN
        ended := mill.end_run(run.id);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.advance_run IS 'Takes in what has ended, tells the children, releases what is ready, and ends the run when nothing is open; a part of it at a time. more: call again. ended: how the run has ended just now';

CREATE OR REPLACE FUNCTION mill.cancel_run(run_id bigint, kill boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_state mill.run_state;
BEGIN
    SELECT r.state INTO found_state FROM mill.runs r WHERE r.id = cancel_run.run_id FOR NO KEY UPDATE;
    IF found_state IS DISTINCT FROM 'running' THEN
        RETURN coalesce(found_state::text, 'not found');
    END IF;
    UPDATE mill.runs r SET cancelled_at = coalesce(r.cancelled_at, now()), kill = r.kill OR cancel_run.kill,
        cancelled_by = coalesce(r.cancelled_by, session_user) WHERE r.id = cancel_run.run_id;
    UPDATE mill.runs r SET open = r.open - c.waited
        FROM mill.cancel_open(cancel_run.run_id, cancel_run.kill, 2000) AS c WHERE r.id = cancel_run.run_id;
    INSERT INTO mill.run_events (run_id) VALUES (cancel_run.run_id);
    PERFORM mill.record_audit('cancel_run', 'run ' || run_id, jsonb_build_object('kill', kill));
    RETURN 'cancelling';
END
$$;
COMMENT ON FUNCTION mill.cancel_run IS 'Cancels a run: nothing more of it starts; running tasks finish, or with kill are cancelled too. cancelling, the state of one that has ended, or not found';

CREATE OR REPLACE FUNCTION mill.reset_run_tasks(run_id bigint, nodes bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM mill.cancel_requests c USING mill.run_tasks t
        WHERE t.run_id = reset_run_tasks.run_id AND t.node = ANY (nodes) AND c.task_id = t.task_id;
    UPDATE mill.run_tasks t SET state = 'waiting', outcome = NULL, pending_propagation = false, propagated_to = 0, started_at = NULL,
            finished_at = NULL, rows = NULL, session_pid = NULL, message = NULL, result = NULL
        WHERE t.run_id = reset_run_tasks.run_id AND t.node = ANY (nodes);
    PERFORM mill.recount_dependencies(run_id, NULL);
    PERFORM mill.release_ready(run_id, NULL, true, 2000);
    UPDATE mill.runs r SET needs_rescan = true, open = (SELECT count(*) FROM mill.run_tasks t
            WHERE t.run_id = r.id AND t.state IN ('waiting', 'ready', 'released'))
        WHERE r.id = reset_run_tasks.run_id;
    INSERT INTO mill.run_events (run_id) VALUES (reset_run_tasks.run_id);
END
$$;
COMMENT ON FUNCTION mill.reset_run_tasks IS 'Part of mill.restart_run and mill.retry_run_task: these tasks of a run wait again for what they waited for';

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
        RAISE EXCEPTION 'run % goes on', run_id USING ERRCODE = '55000',
            HINT = 'One of its tasks: pgmill run retry. To stop it: pgmill run cancel.';
    ELSIF run.state <> 'failed' AND NOT force THEN
        RAISE EXCEPTION 'run % has %, not failed', run_id, run.state USING ERRCODE = '55000',
            HINT = 'pgmill run restart --force restarts it all the same.';
    END IF;
    WITH RECURSIVE chosen (node) AS (
        -- Started, and not to a good end; or never started.
        SELECT t.node FROM mill.run_tasks t WHERE t.run_id = run.id
            AND ((failed OR downstream) AND t.state IN ('failed', 'cancelled') AND t.started_at IS NOT NULL
                OR never_run AND t.state IN ('cancelled', 'upstream_failed') AND t.started_at IS NULL)
        UNION
        SELECT e.child FROM chosen c JOIN mill.run_edges e ON e.run_id = run.id AND e.parent = c.node
            JOIN mill.run_tasks p ON p.run_id = run.id AND p.node = c.node
        WHERE downstream
    )
    SELECT array_agg(c.node) INTO nodes FROM chosen c;
    IF nodes IS NULL THEN
        RAISE EXCEPTION 'run % has no such task', run_id USING ERRCODE = '55000',
            HINT = 'pgmill run show tells what became of each.';
    END IF;
    UPDATE mill.runs r SET state = 'running', finished_at = NULL, cancelled_at = NULL, cancelled_by = NULL,
        kill = false, restarts = r.restarts + 1 WHERE r.id = run.id;
    PERFORM mill.reset_run_tasks(run.id, nodes);
    PERFORM mill.record_audit('restart_run', 'run ' || run.id, jsonb_build_object('failed', failed, 'never_run', never_run,
        'downstream', downstream, 'force', force, 'tasks', cardinality(nodes)));
    RETURN QUERY SELECT t.name::text FROM mill.run_tasks t
        WHERE t.run_id = run.id AND t.node = ANY (nodes) AND t.state <> 'upstream_failed' ORDER BY t.node;
END
$$;
COMMENT ON FUNCTION mill.restart_run IS 'Runs again, in a run that has failed (force: that has ended), its tasks that failed, and those that never ran; downstream: those that failed and all that come after them. Returns their names';

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
    ELSIF run.state <> 'running' OR run.cancelled_at IS NOT NULL THEN
        RAISE EXCEPTION 'run % does not go on', run_id USING ERRCODE = '55000', HINT = 'pgmill run restart';
    ELSIF found_task.state NOT IN ('failed', 'cancelled') THEN
        RETURN found_task.state::text;
    END IF;
    -- What became upstream_failed since, because of it or not, is evaluated anew.
    WITH RECURSIVE after (node) AS (
        SELECT found_task.node
        UNION
        SELECT c.node FROM after a JOIN mill.run_edges e ON e.run_id = run.id AND e.parent = a.node
            JOIN mill.run_tasks c ON c.run_id = run.id AND c.node = e.child AND c.state = 'upstream_failed'
    )
    SELECT array_agg(a.node) INTO nodes FROM after a;
    PERFORM mill.reset_run_tasks(run.id, nodes);
    PERFORM mill.record_audit('retry_run_task', 'run ' || run.id, jsonb_build_object('task', task));
    RETURN 'retried';
END
$$;
COMMENT ON FUNCTION mill.retry_run_task IS 'Runs a task of a run that goes on again, after it failed or was cancelled; what it made upstream_failed waits for it again. retried, its state, or not found';

CREATE OR REPLACE FUNCTION mill.is_upstream_of(run_id bigint, origin bigint, target bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE way (node) AS (
        SELECT origin UNION
        SELECT e.child FROM way w JOIN mill.run_edges e ON e.run_id = is_upstream_of.run_id AND e.parent = w.node
    )
    SELECT EXISTS (SELECT FROM way w WHERE w.node = target)
$$;
COMMENT ON FUNCTION mill.is_upstream_of IS 'Whether a task of a run comes after another one, or is the same';

CREATE OR REPLACE FUNCTION mill.add_run_task(name text, statement text, params jsonb DEFAULT NULL,
    after text[] DEFAULT '{}', before text[] DEFAULT '{}', queue text DEFAULT 'default',
    priority mill.priority DEFAULT NULL, group_name text DEFAULT NULL, concurrency_key text DEFAULT NULL,
    max_attempts integer DEFAULT 3, retry_interval interval DEFAULT '10 seconds',
    backoff mill.backoff DEFAULT 'exponential', jitter boolean DEFAULT true, timeout interval DEFAULT NULL,
    mode mill.mode DEFAULT 'transaction', ignore_failure boolean DEFAULT false,
    run_id bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    self mill.tasks;
    run mill.runs;
    new_node bigint := nextval('mill.added_nodes');
    other mill.run_tasks;
    named text;
BEGIN
    SELECT t.* INTO self FROM mill.tasks t
        WHERE t.id = nullif(current_setting('mill.task_id', true), '')::bigint AND t.node IS NOT NULL;
    run_id := coalesce(run_id, self.run_id);
    IF run_id IS NULL THEN
        RAISE EXCEPTION 'no run is named, and this is no task of one' USING ERRCODE = '22023', HINT = 'run_id => …';
    ELSIF run_id IS DISTINCT FROM self.run_id THEN
        self := NULL;
        -- A run without a task of its own to wait for could end meanwhile.
        SELECT r.* INTO run FROM mill.runs r WHERE r.id = run_id FOR NO KEY UPDATE;
    ELSE
        SELECT r.* INTO run FROM mill.runs r WHERE r.id = run_id;
    END IF;
    IF run.state IS DISTINCT FROM 'running' OR run.cancelled_at IS NOT NULL THEN
        RAISE EXCEPTION 'run % does not go on', run_id USING ERRCODE = '55000';
    END IF;
    PERFORM mill.check_statement(statement, params);
    IF group_name IS NOT NULL AND NOT EXISTS (SELECT FROM mill.groups g WHERE g.name = group_name) THEN
        RAISE EXCEPTION 'there is no group "%"', group_name USING ERRCODE = '22023';
    END IF;
    INSERT INTO mill.run_tasks (run_id, node, name, statement, params, queue, priority, group_name,
        concurrency_key, max_attempts, retry_interval, backoff, jitter, timeout, mode, at_most_once, external,
        ignore_failure, parents)
    VALUES (run_id, new_node, name, statement, params, queue,
        coalesce(priority, (SELECT g.priority FROM mill.groups g WHERE g.name = group_name)), group_name,
        concurrency_key, max_attempts, retry_interval, backoff, jitter, timeout, mode, false, false,
        ignore_failure, cardinality(after))
    ON CONFLICT ON CONSTRAINT run_tasks_name DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % has a task "%" already', run_id, name USING ERRCODE = '23505';
    END IF;
    FOREACH named IN ARRAY after || before LOOP
        SELECT t.* INTO other FROM mill.run_tasks t WHERE t.run_id = add_run_task.run_id AND t.name = named;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'run % has no task "%"', run_id, named USING ERRCODE = '22023';
        ELSIF named = ANY (after) THEN
            INSERT INTO mill.run_edges (run_id, parent, child, expected)
                VALUES (run_id, other.node, new_node, 'succeeded');
        -- What comes after the task that adds cannot start before that one has ended, and with it this.
        ELSIF other.state <> 'waiting'
            OR self.node IS NOT NULL AND (other.node = self.node OR NOT mill.is_upstream_of(run_id, self.node, other.node))
        THEN
            RAISE EXCEPTION 'task "%" does not wait for this one: it could start before "%" is added', named, name
                USING ERRCODE = '55000';
        ELSE
            INSERT INTO mill.run_edges (run_id, parent, child, expected)
                VALUES (run_id, new_node, other.node, 'succeeded');
            IF mill.is_upstream_of(run_id, other.node, new_node) THEN
                RAISE EXCEPTION 'task "%" would come after itself', name USING ERRCODE = '22023';
            END IF;
        END IF;
    END LOOP;
    INSERT INTO mill.run_events (run_id, node) VALUES (run_id, new_node);
END
$$;
COMMENT ON FUNCTION mill.add_run_task IS 'Adds a task to a run that goes on: called by one of its tasks, it is there when that one commits. after: tasks of the run that it waits for; before: tasks that wait for the caller, and then for it too';

CREATE OR REPLACE VIEW mill.run_status AS
    SELECT r.id, r.jobs, CASE WHEN (SELECT mill.sees_statements()) THEN r.params END AS params, r.state,
        r.started_at, r.started_by, r.finished_at,
        coalesce(r.finished_at, now()) - r.started_at AS duration, r.cancelled_at, r.cancelled_by, r.restarts, r.dropped,
        (SELECT s.name FROM mill.schedules s WHERE s.id = r.schedule_id) AS schedule, r.fire_at, r.reason,
        coalesce(n.tasks, r.tasks) AS tasks, coalesce(n.waiting, 0) AS waiting, coalesce(n.released, 0) AS released,
        coalesce(n.succeeded, r.succeeded) AS succeeded, coalesce(n.failed, r.failed) AS failed,
        coalesce(n.ignored, r.ignored) AS ignored, coalesce(n.cancelled, r.cancelled) AS cancelled,
        coalesce(n.upstream_failed, r.upstream_failed) AS upstream_failed
    FROM mill.runs r LEFT JOIN LATERAL (
        SELECT count(*) AS tasks, count(*) FILTER (WHERE t.state IN ('waiting', 'ready')) AS waiting,
            count(*) FILTER (WHERE t.state = 'released') AS released,
            count(*) FILTER (WHERE t.state = 'succeeded') AS succeeded,
            count(*) FILTER (WHERE t.state = 'failed' AND NOT t.ignore_failure) AS failed,
            count(*) FILTER (WHERE t.state = 'failed' AND t.ignore_failure) AS ignored,
            count(*) FILTER (WHERE t.state = 'cancelled') AS cancelled,
            count(*) FILTER (WHERE t.state = 'upstream_failed') AS upstream_failed
        FROM mill.run_tasks t WHERE t.run_id = r.id AND r.state = 'running') AS n ON r.state = 'running';
COMMENT ON VIEW mill.run_status IS 'Runs with their tasks by state: waiting for parents, released (in the queue or running), ended';

CREATE OR REPLACE VIEW mill.run_task_status AS
    SELECT r.run_id, r.node, r.name, r.job, r.task_id,
        CASE WHEN r.state = 'released' THEN coalesce(t.state::text, 'released')
            WHEN r.state = 'failed' AND r.ignore_failure THEN 'failed, ignored' ELSE r.state::text END AS state,
        r.outcome, coalesce(t.claimed_at, r.started_at) AS started_at, r.finished_at,
        coalesce(r.finished_at, CASE WHEN t.state = 'running' THEN now() END)
            - coalesce(t.claimed_at, r.started_at) AS duration,
        coalesce(t.attempt, r.attempts) AS attempts, r.rows, r.queue, coalesce(r.priority, 'normal') AS priority,
        r.group_name, coalesce(t.session_pid, r.session_pid) AS pid, r.join_mode, r.parents, r.satisfied, r.unsatisfied,
        CASE WHEN (SELECT mill.sees_statements()) THEN r.message END AS message,
        CASE WHEN (SELECT mill.sees_statements()) THEN r.result END AS result,
        CASE WHEN (SELECT mill.sees_statements()) THEN r.params END AS params,
        CASE WHEN (SELECT mill.sees_statements()) THEN r.statement END AS statement
    FROM mill.run_tasks r LEFT JOIN mill.tasks t ON r.state = 'released' AND t.id = r.task_id;
COMMENT ON VIEW mill.run_task_status IS 'Tasks of runs: of those in the queue the state there';

-- With its owner's rights a function cannot tell who asks: hidden is hidden from all.
CREATE OR REPLACE FUNCTION mill.visible_message(message text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT message FROM mill.settings s WHERE NOT s.hide_statements
$$;
COMMENT ON FUNCTION mill.visible_message IS 'Part of mill.why: a message, unless messages are hidden';

CREATE OR REPLACE FUNCTION mill.why(run_id bigint, task text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_task mill.run_tasks;
    run mill.runs;
    parents text;
BEGIN
    SELECT t.* INTO found_task FROM mill.run_tasks t WHERE t.run_id = why.run_id AND t.name = task;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = why.run_id;
    IF found_task.state = 'released' THEN
        RETURN coalesce(mill.why(found_task.task_id), 'it has just ended');
    ELSIF found_task.state = 'ready' THEN
        RETURN 'it is ready and about to be put into its queue';
    ELSIF found_task.state = 'cancelled' AND found_task.started_at IS NULL THEN
        RETURN format('it was cancelled before it started%s', ' by ' || run.cancelled_by);
    ELSIF found_task.state NOT IN ('waiting', 'upstream_failed') THEN
        RETURN format('it has ended: %s at %s%s%s', found_task.outcome, date_trunc('second', found_task.finished_at),
            CASE WHEN found_task.state = 'failed' AND found_task.ignore_failure THEN ', ignored' ELSE '' END,
            ': ' || mill.visible_message(found_task.message));
    END IF;
    -- The first ten that stand in the way.
    SELECT string_agg(format('%s (%s, expected %s)', p.name, p.state, p.expected), ', ') INTO parents FROM (
        SELECT t.name, t.state, e.expected FROM mill.run_edges e
            JOIN mill.run_tasks t ON t.run_id = e.run_id AND t.node = e.parent
        WHERE e.run_id = why.run_id AND e.child = found_task.node AND CASE found_task.state
            WHEN 'waiting' THEN t.state IN ('waiting', 'ready', 'released')
            ELSE NOT mill.satisfies(t.state, e.expected) END
        ORDER BY t.node LIMIT 10) AS p;
    IF found_task.state = 'upstream_failed' THEN
        RETURN format('it cannot run any more, because of %s', parents);
    ELSIF run.cancelled_at IS NOT NULL THEN
        RETURN 'its run is being cancelled';
    END IF;
    RETURN format('it waits for %s%s', CASE WHEN found_task.join_mode = 'any' THEN 'one of ' ELSE '' END,
        coalesce(parents, 'parents that have just ended'))
        || CASE WHEN found_task.parents - found_task.satisfied - found_task.unsatisfied > 10
            THEN format(' and more, %s in all', found_task.parents - found_task.satisfied - found_task.unsatisfied) ELSE '' END;
END
$$;
COMMENT ON FUNCTION mill.why(bigint, text) IS 'One sentence: why this task of a run is not running now, or what became of it; null if there is no such task';

-- schedules --------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.is_active(schedule mill.schedules) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT schedule.enabled AND schedule.removed_at IS NULL
$$;
COMMENT ON FUNCTION mill.is_active IS 'Whether the schedule may fire by itself';

CREATE OR REPLACE FUNCTION mill.put_own_job(job text, definition jsonb, enabled boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    other text;
BEGIN
    SELECT j.name INTO other FROM mill.jobs j
        WHERE lower(j.name) = lower(job) AND (j.name <> job OR NOT j.of_schedule);
    IF FOUND THEN
        RAISE EXCEPTION 'there is a job "%"', other USING ERRCODE = '22023',
            HINT = 'Name that job instead of a statement, or give the schedule another name.';
    END IF;
    PERFORM mill.put_job(job, jsonb_build_array(coalesce(definition->'task', '{}')
            || jsonb_build_object('name', job, 'statement', definition->'statement')),
        definition->>'description', definition->>'category', NULL, NULL, enabled);
    UPDATE mill.jobs j SET of_schedule = true WHERE j.name = job AND NOT j.of_schedule;
END
$$;
COMMENT ON FUNCTION mill.put_own_job IS 'Part of mill.put_schedule: a job of one statement';

CREATE OR REPLACE FUNCTION mill.retire_own_job(jobs text[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.enable_job(retire_own_job.jobs[1], false) WHERE NOT EXISTS (SELECT FROM mill.schedules s
        WHERE s.own_job AND s.jobs = retire_own_job.jobs AND s.removed_at IS NULL)
$$;
COMMENT ON FUNCTION mill.retire_own_job IS 'Disables a job that was made for schedules, when none of them is left';

CREATE OR REPLACE FUNCTION mill.put_schedule(definition jsonb, declared_in mill.declared_in,
    declared_as text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    unknown text;
    kept mill.schedules;
    document jsonb := definition - 'enabled';
    enabled boolean := (definition->>'enabled')::boolean;
    wanted text[];
    put mill.schedules;
BEGIN
    IF definition ? 'task' THEN
        definition := definition || jsonb_build_object('task', mill.with_max_attempts(definition->'task'));
        document := definition - 'enabled';
    END IF;
    SELECT k INTO unknown FROM jsonb_object_keys(definition) AS k WHERE k <> ALL (ARRAY['name', 'timing',
        'statement', 'jobs', 'params', 'task', 'overlap', 'catch_up', 'max_lateness', 'jitter', 'description',
        'category', 'enabled']);
    IF FOUND THEN
        RAISE EXCEPTION 'a schedule has no "%"', unknown USING ERRCODE = '22023';
    ELSIF num_nonnulls(definition->>'statement', definition->'jobs') <> 1 THEN
        RAISE EXCEPTION 'schedule "%" needs either a statement or jobs', definition->>'name' USING ERRCODE = '22023';
    ELSIF definition ? 'jobs' AND definition ?| ARRAY['task', 'description', 'category']
        OR definition ? 'statement' AND definition ? 'params'
    THEN
        RAISE EXCEPTION 'schedule "%" cannot say this', definition->>'name' USING ERRCODE = '22023',
            HINT = 'task, description and category are of a statement, whose params stand in task; params are of jobs.';
    END IF;
    SELECT s.* INTO kept FROM mill.schedules s WHERE s.name = definition->>'name' FOR NO KEY UPDATE;
    IF kept.removed_at IS NULL AND kept.declared_in <> declared_in THEN
        RAISE EXCEPTION 'schedule "%" is declared in %', kept.name, CASE kept.declared_in
                WHEN 'comment' THEN 'the comment of ' || kept.declared_as WHEN 'file' THEN 'a file'
                ELSE 'a call of mill.set_schedule' END
            USING ERRCODE = '55000', HINT = 'Change it there, or remove it there first.';
    END IF;
    IF kept.removed_at IS NULL AND kept.definition = document AND coalesce(enabled, kept.enabled) = kept.enabled THEN
        RETURN 'unchanged';
    END IF;
    IF definition ? 'statement' THEN
        wanted := ARRAY[coalesce(declared_as, definition->>'name')];
        PERFORM mill.put_own_job(wanted[1], definition,
            CASE WHEN kept.removed_at IS NOT NULL OR NOT kept.own_job THEN true END);
    ELSE
        SELECT array_agg(j.value ORDER BY j.place) INTO wanted
            FROM jsonb_array_elements_text(definition->'jobs') WITH ORDINALITY AS j(value, place);
        IF wanted IS NULL THEN
            RAISE EXCEPTION 'schedule "%" names no job', definition->>'name' USING ERRCODE = '22023';
        END IF;
        SELECT w INTO unknown FROM unnest(wanted) AS w WHERE NOT EXISTS (
            SELECT FROM mill.jobs j WHERE lower(j.name) = lower(btrim(w))) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'there is no job "%"', unknown USING ERRCODE = '22023',
                HINT = 'pgmill job list shows those that there are.';
        END IF;
    END IF;
    INSERT INTO mill.schedules AS s (name, declared_in, declared_as, definition, jobs, own_job, params, timing,
        overlap, catch_up, max_lateness, declared_jitter, enabled, next_tick_at)
    VALUES (definition->>'name', declared_in, declared_as, document, wanted, definition ? 'statement',
        coalesce(definition->'params', '{}'), definition->>'timing',
        coalesce((definition->>'overlap')::mill.overlap, 'skip'), coalesce((definition->>'catch_up')::integer, 1),
        (definition->>'max_lateness')::interval, coalesce((definition->>'jitter')::interval, '0'),
        coalesce(enabled, true), CASE WHEN coalesce(enabled, true) THEN now() END)
    ON CONFLICT (name) DO UPDATE SET declared_in = excluded.declared_in, declared_as = excluded.declared_as,
        definition = excluded.definition, jobs = excluded.jobs, own_job = excluded.own_job, params = excluded.params, timing = excluded.timing,
        overlap = excluded.overlap, catch_up = excluded.catch_up, max_lateness = excluded.max_lateness,
        declared_jitter = excluded.declared_jitter, removed_at = NULL,
        enabled = coalesce(enabled, s.enabled)
    RETURNING s.* INTO put;
    -- What counts from now on: a new timing, or that it may fire again.
    IF kept.id IS NOT NULL AND (put.timing <> kept.timing OR mill.is_active(put) <> mill.is_active(kept)) THEN
        PERFORM mill.replan_schedule(put.id);
    END IF;
    PERFORM mill.record_audit('put_schedule', 'schedule ' || put.name, jsonb_build_object('declared_in', declared_in,
        'timing', put.timing, 'enabled', put.enabled, 'result', CASE WHEN kept.id IS NULL THEN 'new' ELSE 'changed' END));
    IF kept.id IS NULL THEN
        RETURN 'new';
    ELSIF kept.own_job AND kept.jobs <> wanted THEN
        PERFORM mill.retire_own_job(kept.jobs);
    END IF;
    UPDATE mill.schedules s SET version = s.version + 1, changed_at = now(), changed_by = session_user
        WHERE s.id = put.id;
    RETURN 'changed';
END
$$;
COMMENT ON FUNCTION mill.put_schedule IS 'Makes a schedule what the document says: name, timing, statement or jobs, task (of the statement: as of mill.set_job), params, overlap, catch_up, max_lateness, jitter, description, category, enabled. new, changed or unchanged';

CREATE OR REPLACE FUNCTION mill.replan_schedule(schedule_id bigint) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    UPDATE mill.schedules s SET planned_from = now(), next_fire_at = NULL, queued_fire_at = NULL, trigger = NULL,
            error = NULL, next_tick_at = CASE WHEN mill.is_active(s) THEN now() END
        WHERE s.id = replan_schedule.schedule_id
$$;
COMMENT ON FUNCTION mill.replan_schedule IS 'Has the next tick work out when the schedule fires, from now on';

CREATE OR REPLACE FUNCTION mill.set_schedule(name text, timing text, statement text DEFAULT NULL,
    jobs text[] DEFAULT NULL, params jsonb DEFAULT NULL, task jsonb DEFAULT NULL, overlap mill.overlap DEFAULT 'skip',
    catch_up integer DEFAULT 1, max_lateness interval DEFAULT NULL, jitter interval DEFAULT NULL,
    description text DEFAULT NULL, category text DEFAULT NULL, enabled boolean DEFAULT NULL) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.put_schedule(jsonb_strip_nulls(jsonb_build_object('name', name, 'timing', timing, 'statement', statement,
        'jobs', to_jsonb(jobs), 'params', params, 'task', task, 'overlap', overlap, 'catch_up', catch_up,
        'max_lateness', max_lateness, 'jitter', jitter, 'description', description, 'category', category,
        'enabled', enabled)), 'call')
$$;
COMMENT ON FUNCTION mill.set_schedule IS 'Makes a schedule what is said here, all of it; new, changed or unchanged. timing: manual, a cadence such as daily(03:15), or trigger(…). It runs the statement, with what task says: {"params", "queue", "priority", "group", "max_attempts", "timeout", "mode", …}; or these jobs, with these params. enabled null leaves it as it is';

CREATE OR REPLACE FUNCTION mill.remove_schedules(names text[]) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone mill.schedules;
BEGIN
    FOR gone IN
        UPDATE mill.schedules s SET removed_at = now(), next_tick_at = NULL, next_fire_at = NULL, queued_fire_at = NULL,
                changed_at = now(), changed_by = session_user, version = s.version + 1
            WHERE s.name = ANY (names) AND s.removed_at IS NULL RETURNING s.*
    LOOP
        PERFORM mill.retire_own_job(gone.jobs) WHERE gone.own_job;
        PERFORM mill.record_audit('remove_schedules', 'schedule ' || gone.name);
        RETURN NEXT gone.name;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.remove_schedules IS 'These schedules do not fire any more; nothing is deleted. Which of them there were';

CREATE OR REPLACE FUNCTION mill.enable_schedule(name text, enabled boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    found_schedule mill.schedules;
BEGIN
    SELECT s.* INTO found_schedule FROM mill.schedules s WHERE s.name = enable_schedule.name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF found_schedule.enabled <> enabled THEN
        UPDATE mill.schedules s SET enabled = enable_schedule.enabled, changed_at = now(), changed_by = session_user,
            version = s.version + 1 WHERE s.id = found_schedule.id;
        PERFORM mill.replan_schedule(found_schedule.id);
        PERFORM mill.record_audit('enable_schedule', 'schedule ' || name, jsonb_build_object('enabled', enabled));
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.enable_schedule IS 'Lets a schedule fire, from now on, or not; false: there is none of that name';

CREATE OR REPLACE FUNCTION mill.adjust_schedule(name text, settings jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unknown text;
BEGIN
    settings := mill.with_max_attempts(settings);
    SELECT k INTO unknown FROM jsonb_object_keys(settings) AS k
        WHERE k <> ALL (ARRAY['max_attempts', 'retry_interval', 'jitter']);
    IF FOUND THEN
        RAISE EXCEPTION 'what can be adjusted is max_attempts, retry_interval and jitter, not "%"', unknown
            USING ERRCODE = '22023';
    END IF;
    UPDATE mill.schedules s SET changed_at = now(), changed_by = session_user, version = s.version + 1,
            max_attempts = CASE WHEN settings ? 'max_attempts' THEN (settings->>'max_attempts')::integer
                ELSE s.max_attempts END,
            retry_interval = CASE WHEN settings ? 'retry_interval' THEN (settings->>'retry_interval')::interval
                ELSE s.retry_interval END,
            jitter = CASE WHEN settings ? 'jitter' THEN (settings->>'jitter')::interval ELSE s.jitter END
        WHERE s.name = adjust_schedule.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_audit('adjust_schedule', 'schedule ' || name, settings);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.adjust_schedule IS 'Sets what is a person''s and survives every declaration: {"max_attempts", "retry_interval", "jitter"}; null: as it is declared. False: there is no such schedule';

CREATE OR REPLACE FUNCTION mill.blocking_run(schedule mill.schedules) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.id FROM mill.runs r WHERE r.schedule_id = schedule.id AND r.state = 'running' AND schedule.overlap <> 'allow'
    ORDER BY r.id LIMIT 1
$$;
COMMENT ON FUNCTION mill.blocking_run IS 'The run of a schedule that goes on, if that is in the way of another';

CREATE OR REPLACE FUNCTION mill.evaluate_trigger(trigger jsonb, pending bigint, oldest_age interval, last_fire_at timestamptz,
    OUT fire boolean, OUT reason text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    least_rows bigint := (trigger->>'rows')::bigint;
    idle interval := make_interval(secs => (trigger->>'idle_secs')::double precision);
    debounce interval := make_interval(secs => (trigger->>'debounce_secs')::double precision);
    age interval := date_trunc('second', oldest_age);
BEGIN
    fire := true;
    IF pending >= least_rows THEN
        reason := format('row threshold: %s rows >= %s', pending, least_rows);
    ELSIF pending > 0 AND oldest_age >= idle THEN
        reason := format('idle: the oldest of %s rows is %s old >= %s', pending, age, idle);
    ELSIF pending > 0 AND (trigger->>'new_rows')::boolean AND coalesce(now() - last_fire_at >= debounce, true) THEN
        reason := format('new rows: %s, and %s', pending, CASE WHEN last_fire_at IS NULL THEN 'no fire before'
            ELSE format('the last fire %s ago >= %s', date_trunc('second', now() - last_fire_at), debounce) END);
    ELSE
        fire := false;
        reason := 'no trigger is met: ' || array_to_string(ARRAY[
            CASE WHEN pending = 0 THEN 'no rows' ELSE format('%s rows', pending) END
                || coalesce(' < ' || least_rows, ''),
            CASE WHEN pending > 0 AND idle IS NOT NULL
                THEN format('the oldest is %s old < %s', coalesce(age::text, 'of unknown age,'), idle) END,
            CASE WHEN pending > 0 AND (trigger->>'new_rows')::boolean
                THEN format('the last fire %s ago < %s', date_trunc('second', now() - last_fire_at), debounce) END], ', ');
    END IF;
END
$$;
COMMENT ON FUNCTION mill.evaluate_trigger IS 'Part of mill.should_fire: row threshold before idle before new rows; the first that is met, or why none is';

CREATE OR REPLACE FUNCTION mill.should_fire(schedule mill.schedules, pending bigint, oldest_age interval,
    OUT fire boolean, OUT reason text, OUT blocked_by bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    fire := false;
    reason := CASE WHEN schedule.removed_at IS NOT NULL
            THEN format('its declaration is gone since %s', date_trunc('second', schedule.removed_at))
        WHEN NOT schedule.enabled AND schedule.timing ILIKE 'once(%' AND schedule.last_fire_at IS NOT NULL
            THEN 'it has fired, and has no other fire'
        WHEN NOT schedule.enabled THEN 'it is disabled'
        WHEN schedule.mode = 'manual' THEN 'it fires only when somebody says so'
        WHEN schedule.next_fire_at IS NULL AND schedule.trigger IS NULL AND schedule.next_tick_at IS NOT NULL
            THEN 'no worker has worked out its timing since it was changed'
        WHEN schedule.mode = 'triggered' AND schedule.trigger IS NULL
            OR schedule.mode = 'scheduled' AND schedule.next_fire_at IS NULL
            THEN coalesce(schedule.error, 'it has no fire left')
        WHEN schedule.mode = 'scheduled' AND schedule.next_fire_at > now()
            THEN format('the next fire is not due before %s, in %s', schedule.next_fire_at,
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
    IF blocked_by IS NOT NULL THEN
        reason := format('%s; run %s goes on since %s', reason, blocked_by, (SELECT date_trunc('second', r.started_at)
            FROM mill.runs r WHERE r.id = blocked_by));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.should_fire IS 'Whether a schedule is to fire now, and why or why not: for ticks and for mill.schedule_test alike. pending, oldest_age: what mill.measure_query found';

CREATE OR REPLACE FUNCTION mill.fire(schedule mill.schedules, fire_at timestamptz, reason text, pending bigint DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    fired bigint;
    problem text;
    broken text;
BEGIN
    -- Nobody else fires this schedule meanwhile. Left to the unique index, this would wait for whoever ends
    -- that run, who waits for the schedule's row.
    IF EXISTS (SELECT FROM mill.runs r WHERE r.schedule_id = schedule.id AND r.fire_at = fire.fire_at) THEN
        RETURN NULL;
    END IF;
    BEGIN
        SELECT r.run_id INTO fired
            FROM mill.make_run(schedule.jobs, schedule.params, schedule, fire_at, reason) AS r;
    EXCEPTION WHEN OTHERS THEN
        -- Others are not to wait for this schedule, and it is not to come back before its next time.
        GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, broken = CONSTRAINT_NAME;
        IF broken <> 'runs_fire' THEN
            INSERT INTO mill.schedule_log (schedule_id, event, fire_at, reason, rows, message)
                VALUES (schedule.id, 'error', fire_at, reason, pending, problem);
        END IF;
        RETURN NULL;
    END;
    INSERT INTO mill.schedule_log (schedule_id, event, fire_at, reason, rows, run_id)
        VALUES (schedule.id, 'fired', fire_at, reason, pending, fired);
    UPDATE mill.schedules s SET last_fire_at = greatest(s.last_fire_at, fire_at) WHERE s.id = schedule.id;
    RETURN fired;
END
$$;
COMMENT ON FUNCTION mill.fire IS 'Starts a run of a schedule whose row is locked; null: there is one of this instant, or it could not be started, which is in the log';

CREATE OR REPLACE FUNCTION mill.fire_or_skip(schedule mill.schedules, fire_at timestamptz, pending bigint, oldest_age interval,
    OUT fired integer, OUT skipped integer)
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
    ELSIF schedule.mode = 'scheduled' AND schedule.overlap = 'queue' AND schedule.queued_fire_at IS NULL THEN
        UPDATE mill.schedules s SET queued_fire_at = fire_at WHERE s.id = schedule.id;
    -- A trigger that stays met while a run goes on says so once.
    ELSIF schedule.mode = 'scheduled' OR NOT EXISTS (SELECT FROM mill.schedule_log l
        WHERE l.schedule_id = schedule.id AND l.event = 'skipped' AND l.run_id = decision.blocked_by
            AND l.id > coalesce((SELECT max(f.id) FROM mill.schedule_log f
                WHERE f.schedule_id = schedule.id AND f.event = 'fired'), 0))
    THEN
        INSERT INTO mill.schedule_log (schedule_id, event, fire_at, reason, rows, run_id, message)
            VALUES (schedule.id, 'skipped', fire_at, split_part(decision.reason, '; ', 1), pending, decision.blocked_by,
                split_part(decision.reason, '; ', 2));
        skipped := 1;
    END IF;
END
$$;
COMMENT ON FUNCTION mill.fire_or_skip IS 'Part of a tick: what mill.should_fire says, done and logged';

CREATE OR REPLACE FUNCTION mill.lock_due_schedules(max_count integer)
RETURNS TABLE (id bigint, name text, version integer, timing text, mode mill.fire_mode, next_fire_at timestamptz,
    planned_from timestamptz, now timestamptz, catch_up integer, max_lateness double precision, measure text, timeout double precision)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    s mill.schedules;
BEGIN
    -- WAL is ordered: a run that survives a crash has the step of its schedule before it.
    PERFORM set_config('synchronous_commit', 'off', true);
    FOR s IN SELECT x.* FROM mill.schedules x WHERE x.next_tick_at <= now()
        ORDER BY x.next_tick_at LIMIT max_count FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        id := s.id;
        name := s.name;
        version := s.version;
        timing := s.timing;
        mode := s.mode;
        next_fire_at := s.next_fire_at;
        planned_from := s.planned_from;
        -- What was held back by jitter is not late.
        now := now() - least(greatest(s.next_tick_at - s.next_fire_at, '0'), coalesce(s.jitter, s.declared_jitter));
        catch_up := s.catch_up;
        max_lateness := extract(epoch FROM s.max_lateness);
        measure := mill.measure_query(s.trigger);
        timeout := (s.trigger->>'timeout_secs')::double precision;
        IF s.trigger IS NOT NULL THEN
            -- Who takes it looks at the table, once until then.
            UPDATE mill.schedules x SET next_tick_at = now() + make_interval(secs => (s.trigger->>'every_secs')::double precision)
                WHERE x.id = s.id;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.lock_due_schedules IS 'Locks schedules that a tick has to look at, for the caller''s transaction. planned_from: from when on to look for a fire, while next_fire_at is null. now: less what jitter held back. measure: of a trigger that has been read, what to ask, within timeout seconds';

CREATE OR REPLACE FUNCTION mill.tick(plans jsonb) RETURNS TABLE (schedule_id bigint, fired integer, skipped integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    plan record;
    s mill.schedules;
    one_fire_at timestamptz;
    step record;
BEGIN
    FOR plan IN SELECT p.* FROM jsonb_to_recordset(plans) AS p(id bigint, fires timestamptz[], next_fire_at timestamptz,
        missed bigint, missed_from timestamptz, missed_to timestamptz, uncounted boolean, failure text, error text,
        trigger jsonb)
    LOOP
        schedule_id := plan.id;
        fired := 0;
        skipped := 0;
        IF plan.missed > 0 THEN
            INSERT INTO mill.schedule_log (schedule_id, event, fire_at, count, message)
                VALUES (plan.id, 'missed', plan.missed_to, plan.missed, format('%s from %s to %s%s', plan.missed,
                    plan.missed_from, plan.missed_to,
                    CASE WHEN plan.uncounted THEN ', and more until an hour ago' ELSE '' END));
        END IF;
        IF num_nonnulls(plan.error, plan.failure) > 0 THEN
            INSERT INTO mill.schedule_log (schedule_id, event, message)
                VALUES (plan.id, 'error', coalesce(plan.error, plan.failure));
        END IF;
        FOREACH one_fire_at IN ARRAY coalesce(plan.fires, '{}') LOOP
            SELECT x.* INTO s FROM mill.schedules x WHERE x.id = plan.id;
            s.next_fire_at := one_fire_at;
            SELECT f.* INTO step FROM mill.fire_or_skip(s, one_fire_at, NULL, NULL) AS f;
            fired := fired + step.fired;
            skipped := skipped + step.skipped;
        END LOOP;
        SELECT x.* INTO s FROM mill.schedules x WHERE x.id = plan.id;
        IF s.queued_fire_at IS NOT NULL AND (plan.failure IS NOT NULL OR mill.blocking_run(s) IS NULL) THEN
            IF plan.failure IS NULL THEN
                fired := fired + (mill.fire(s, s.queued_fire_at, 'schedule, queued') IS NOT NULL)::integer;
            END IF;
            UPDATE mill.schedules x SET queued_fire_at = NULL WHERE x.id = plan.id;
        END IF;
        -- What has no fire left is over: once.
        UPDATE mill.schedules x SET next_fire_at = plan.next_fire_at, trigger = plan.trigger, error = plan.error,
                enabled = x.enabled AND (x.mode <> 'scheduled' OR plan.error IS NOT NULL OR plan.next_fire_at IS NOT NULL),
                next_tick_at = CASE WHEN plan.trigger IS NOT NULL THEN now()
                    ELSE plan.next_fire_at + random() * coalesce(x.jitter, x.declared_jitter) END
            WHERE x.id = plan.id;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.tick IS 'What a tick has worked out about schedules that it has taken: [{"id", "fires", "next_fire_at", "missed", "missed_from", "missed_to", "uncounted", "failure" (of a try before), "error" (of the timing), "trigger"}]. How often each has fired, and was skipped';

CREATE OR REPLACE FUNCTION mill.measure_query(trigger jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN trigger ? 'probe' THEN format($query$SELECT (m.found)[1]::numeric::bigint,
    extract(epoch FROM now() - (m.found)[2]::timestamptz)::float8
FROM (SELECT ARRAY(SELECT e.value FROM pg_catalog.json_each_text(pg_catalog.row_to_json(probe)) AS e) AS found FROM (
%s
) AS probe LIMIT 2) AS m$query$, trigger->>'probe')
    ELSE format($query$SELECT count(*), %s FROM %s WHERE (
%s
)$query$, CASE WHEN trigger ? 'age' THEN format('extract(epoch FROM now() - min(%I)::timestamptz)::float8', trigger->>'age')
            ELSE 'NULL::float8' END,
        (SELECT string_agg(format('%I', p.value), '.' ORDER BY p.place)
            FROM jsonb_array_elements_text(trigger->'table') WITH ORDINALITY AS p(value, place)),
        coalesce(trigger->>'filter', 'true')) END
$$;
COMMENT ON FUNCTION mill.measure_query IS 'A query that says how many rows are pending and how many seconds old the oldest is: names quoted, filter and probe as they were declared. To be run in a transaction that reads only, as one statement, by a login that may read the table';

CREATE OR REPLACE FUNCTION mill.tick_trigger(schedule_id bigint, version integer, taken_at timestamptz, pending bigint,
    oldest_seconds double precision, error text) RETURNS TABLE (fired integer, skipped integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    s mill.schedules;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT x.* INTO s FROM mill.schedules x WHERE x.id = tick_trigger.schedule_id FOR NO KEY UPDATE;
    -- Changed since it was measured, or gone, or fired for what a later look has found.
    IF s.version IS DISTINCT FROM tick_trigger.version OR s.trigger IS NULL OR NOT mill.is_active(s)
        OR s.last_fire_at >= taken_at
    THEN
        RETURN QUERY SELECT 0, 0;
        RETURN;
    END IF;
    IF tick_trigger.error IS DISTINCT FROM s.error THEN
        UPDATE mill.schedules x SET error = tick_trigger.error WHERE x.id = s.id;
        -- The same again is no news.
        IF tick_trigger.error IS NOT NULL THEN
            INSERT INTO mill.schedule_log (schedule_id, event, message) VALUES (s.id, 'error', tick_trigger.error);
        END IF;
    END IF;
    IF tick_trigger.error IS NOT NULL THEN
        RETURN QUERY SELECT 0, 0;
        RETURN;
    END IF;
    RETURN QUERY SELECT f.fired, f.skipped
        FROM mill.fire_or_skip(s, now(), pending, make_interval(secs => oldest_seconds)) AS f;
END
$$;
COMMENT ON FUNCTION mill.tick_trigger IS 'taken_at: by mill.lock_due_schedules. What was found of what triggers a schedule, or what went wrong; fires if that is enough';

CREATE OR REPLACE FUNCTION mill.run_now(name text, force boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s mill.schedules;
    blocker bigint;
    started bigint;
BEGIN
    SELECT x.* INTO s FROM mill.schedules x WHERE x.name = run_now.name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF s.removed_at IS NOT NULL THEN
        RAISE EXCEPTION 'the declaration of schedule "%" is gone since %', s.name, date_trunc('second', s.removed_at)
            USING ERRCODE = '55000', HINT = 'Declare it again.';
    END IF;
    blocker := mill.blocking_run(s);
    IF blocker IS NOT NULL AND NOT force THEN
        RAISE EXCEPTION 'run % of schedule "%" goes on', blocker, s.name USING ERRCODE = '55000',
            HINT = 'Wait for it, cancel it (pgmill run cancel), or start another one beside it with --force.';
    END IF;
    SELECT r.run_id INTO started
        FROM mill.make_run(s.jobs, s.params, s, clock_timestamp(), 'manual') AS r;
    INSERT INTO mill.schedule_log (schedule_id, event, fire_at, reason, run_id, message)
        SELECT s.id, 'fired', r.fire_at, r.reason, r.id, 'by ' || session_user FROM mill.runs r WHERE r.id = started;
    PERFORM mill.record_audit('run_now', 'schedule ' || s.name, jsonb_build_object('run', started, 'force', force));
    RETURN started;
END
$$;
COMMENT ON FUNCTION mill.run_now IS 'Starts a run of a schedule, whatever its timing says and without a change to it; its id. Null: there is no such schedule. Refuses while a run goes on that another must not overlap, but for force';

CREATE OR REPLACE FUNCTION mill.log_completed(ended mill.runs) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO mill.schedule_log (schedule_id, event, fire_at, reason, run_id, outcome, duration, message)
        VALUES (ended.schedule_id, 'completed', ended.fire_at, ended.reason, ended.id, ended.state,
            ended.finished_at - ended.started_at, CASE WHEN ended.failed > 0 THEN (SELECT t.name || ': ' || t.message
                FROM mill.run_tasks t WHERE t.run_id = ended.id AND t.state = 'failed' AND NOT t.ignore_failure
                ORDER BY t.node LIMIT 1) END);
    UPDATE mill.schedules s SET last_finished_at = ended.finished_at, last_state = ended.state,
            last_success_at = CASE WHEN ended.state = 'succeeded' THEN ended.finished_at ELSE s.last_success_at END,
            next_tick_at = CASE WHEN s.queued_fire_at IS NOT NULL THEN now() ELSE s.next_tick_at END
        WHERE s.id = ended.schedule_id;
END
$$;
COMMENT ON FUNCTION mill.log_completed IS 'Part of mill.end_run, for a run that a schedule has fired';

CREATE OR REPLACE FUNCTION mill.log_reclaimed(task mill.tasks) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO mill.schedule_log (schedule_id, event, fire_at, run_id, message)
        SELECT r.schedule_id, 'reclaimed', r.fire_at, r.id,
            format('the worker of task %s died, which it had since %s', task.name, date_trunc('second', task.claimed_at))
        FROM mill.runs r WHERE r.id = task.run_id AND r.schedule_id IS NOT NULL
$$;
COMMENT ON FUNCTION mill.log_reclaimed IS 'Part of mill.fail, for a task of a run that a schedule has fired';

CREATE OR REPLACE FUNCTION mill.prune_schedule_log() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted integer;
BEGIN
    -- Ids come in the order of time, nearly: the oldest ones are looked at.
    DELETE FROM mill.schedule_log l USING (SELECT o.id FROM mill.schedule_log o ORDER BY o.id LIMIT 10000) AS oldest,
            mill.settings s
        WHERE l.id = oldest.id AND l.logged_at < now() - s.schedule_log_retention;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION mill.prune_schedule_log IS 'Deletes rows past settings.schedule_log_retention, up to 10000; returns how many';

CREATE OR REPLACE VIEW mill.schedule_status AS
    SELECT s.id, s.name, s.mode, s.timing, s.jobs, s.declared_in, s.declared_as, s.enabled, s.removed_at,
        CASE WHEN s.removed_at IS NOT NULL THEN 'removed' WHEN NOT s.enabled THEN 'disabled'
            WHEN s.error IS NOT NULL THEN 'error' WHEN going.id IS NOT NULL THEN 'running' ELSE 'waiting' END AS status,
        s.next_fire_at, s.last_fire_at, s.last_finished_at, s.last_state, s.last_success_at, s.queued_fire_at, s.error,
        going.id AS running_run_id, s.overlap, s.catch_up, s.max_lateness, coalesce(s.jitter, s.declared_jitter) AS jitter,
        s.max_attempts, s.retry_interval, CASE WHEN (SELECT mill.sees_statements()) THEN s.params END AS params,
        s.version, s.changed_at, s.changed_by,
        CASE WHEN s.next_tick_at < now() THEN now() - s.next_tick_at END AS overdue
    FROM mill.schedules s LEFT JOIN LATERAL (SELECT r.id FROM mill.runs r
        WHERE r.schedule_id = s.id AND r.state = 'running' ORDER BY r.id LIMIT 1) AS going ON true;
COMMENT ON VIEW mill.schedule_status IS 'Schedules: what is declared, what a person has set, when they fire, how the last run ended';

CREATE OR REPLACE VIEW mill.schedule_history AS
    SELECT r.id AS run_id, r.schedule_id, s.name AS schedule, r.fire_at, r.reason, r.state, r.started_at, r.finished_at,
        coalesce(r.finished_at, now()) - r.started_at AS duration, r.tasks, r.started_by,
        one.attempts, one.task_id,
        CASE WHEN (SELECT mill.sees_statements()) THEN coalesce(failed.message, one.message) END AS message,
        place.worker, r.jobs
    FROM mill.runs r JOIN mill.schedules s ON s.id = r.schedule_id
        LEFT JOIN mill.run_tasks one ON r.tasks = 1 AND one.run_id = r.id AND one.node = 1
        LEFT JOIN LATERAL (SELECT w.host || ':' || w.pid AS worker FROM mill.attempts a
            JOIN mill.worker_starts w ON w.id = a.worker_id WHERE a.task_id = one.task_id
            ORDER BY a.finished_at DESC LIMIT 1) AS place ON true
        LEFT JOIN LATERAL (SELECT t.name || ': ' || t.message AS message FROM mill.run_tasks t
            WHERE r.tasks > 1 AND t.run_id = r.id AND t.state = 'failed' ORDER BY t.node LIMIT 1) AS failed ON true;
COMMENT ON VIEW mill.schedule_history IS 'Runs that schedules have fired; attempts, task_id, message and worker (of the last attempt) of those with one task, message of the first that failed of others';

CREATE OR REPLACE FUNCTION mill.schedule_test(name text) RETURNS TABLE (would_fire boolean, reason text,
    pending_rows bigint, oldest_row_age interval, next_fire_at timestamptz)
-- Read only, and with the rights and the search_path of who asks: a probe is somebody's SQL. STABLE does not
-- keep it from calling what writes.
LANGUAGE plpgsql STABLE SET transaction_read_only = on AS $$
#variable_conflict use_column
DECLARE
    s mill.schedules;
    age double precision;
    answers integer := 0;
    decision record;
BEGIN
    SELECT x.* INTO s FROM mill.schedules x WHERE x.name = schedule_test.name;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF s.trigger IS NOT NULL AND mill.is_active(s) THEN
        FOR pending_rows, age IN EXECUTE mill.measure_query(s.trigger) LOOP
            answers := answers + 1;
        END LOOP;
        oldest_row_age := make_interval(secs => age);
    END IF;
    IF s.trigger IS NOT NULL AND mill.is_active(s) AND (answers <> 1 OR pending_rows IS NULL) THEN
        RETURN QUERY SELECT false, format('the probe returned %s, not one row of a number and an instant',
            CASE answers WHEN 0 THEN 'no row' WHEN 1 THEN 'no number' ELSE 'several rows' END), NULL::bigint, NULL::interval,
            NULL::timestamptz;
        RETURN;
    END IF;
    SELECT d.* INTO decision FROM mill.should_fire(s, pending_rows, oldest_row_age) AS d;
    would_fire := decision.fire;
    reason := decision.reason;
    next_fire_at := s.next_fire_at;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION mill.schedule_test IS 'Whether a tick would fire the schedule now, and why or why not, without firing it; measures with the rights of the caller. No row: there is no such schedule';

-- What a person says about queues and workers -----------------------------------------------------

CREATE OR REPLACE FUNCTION mill.pause(queue text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO mill.queues (name, paused) VALUES (pause.queue, true)
        ON CONFLICT (name) DO UPDATE SET paused = true, changed_at = now();
    PERFORM mill.record_audit('pause', 'queue ' || queue);
END
$$;
COMMENT ON FUNCTION mill.pause IS 'Stops claims from a queue; running tasks go on';

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
COMMENT ON FUNCTION mill.resume IS 'Lets claims from a paused queue go on';

CREATE OR REPLACE FUNCTION mill.share_commits(queue text, budget interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO mill.queues (name, shared_commit) VALUES (share_commits.queue, budget)
        ON CONFLICT (name) DO UPDATE SET shared_commit = budget, changed_at = now();
    PERFORM mill.record_audit('share_commits', 'queue ' || queue, jsonb_build_object('budget', budget));
END
$$;
COMMENT ON FUNCTION mill.share_commits IS 'Lets readers run short tasks of a queue one after another in one transaction, for up to this budget (1 to 100 ms); null: each task commits alone. Workers see it within two seconds';

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
COMMENT ON FUNCTION mill.drain IS 'Makes a worker stop claiming (or go on: draining => false); false if there is no such worker';

-- What a person reads ----------------------------------------------------------------------------

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
        -- Scans count blocks, sorts and merges tuples, and CONCURRENTLY waits for others in between.
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
COMMENT ON FUNCTION mill.command_progress IS 'Part of mill.backends: how far the server says that its VACUUM, ANALYZE, CREATE INDEX, REINDEX, CLUSTER and COPY are, by backend; percent is of the phase';

CREATE OR REPLACE FUNCTION mill.backends() RETURNS TABLE (pid integer, backend_start timestamptz,
    state text, wait_event_type text, wait_event text, query text, blocked_by integer[], blockers jsonb,
    message text, percent double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH activity AS MATERIALIZED (
        SELECT a.pid, a.backend_start, a.state, a.wait_event_type, a.wait_event, a.query, a.usename,
            a.application_name, a.xact_start
        FROM pg_stat_activity a
    ), own AS MATERIALIZED (
        -- Of tasks that share a commit there are several to a backend.
        SELECT a.*, pg_blocking_pids(a.pid) AS blocked_by FROM activity a
        WHERE (a.pid, a.backend_start) IN (SELECT t.session_pid, t.session_started_at FROM mill.tasks t
            WHERE t.state = 'running')
    )
    SELECT o.pid, o.backend_start, o.state, o.wait_event_type, o.wait_event, o.query, o.blocked_by,
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
COMMENT ON FUNCTION mill.backends IS 'The backends of running tasks, and no others: what they do, wait for and are blocked by, and how far the command is where the server tells. blockers: [{"pid", "task_id", "name", "application", "user", "state", "transaction_started_at"}], task and name of those that run a task';

-- A set, so that one look at any number of workers reads the server's locks once.
CREATE OR REPLACE FUNCTION mill.live_sessions() RETURNS SETOF bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.classid::bigint << 32 | l.objid::bigint FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;
COMMENT ON FUNCTION mill.live_sessions IS 'Keys of the advisory locks that some session holds: a worker whose control session is gone holds none';

CREATE OR REPLACE VIEW mill.running AS
    SELECT t.id, t.queue, t.name, t.priority, t.mode, t.attempt, t.claimed_at AS started_at,
        now() - t.claimed_at AS running_duration, t.claimed_by AS worker_id, s.host, s.pid AS worker_pid,
        t.session_pid AS pid, b.state AS backend_state, b.wait_event_type, b.wait_event,
        b.blocked_by, r.requested_at AS cancel_requested_at, t.statement,
        -- What the task says of itself comes before what the server says of one command.
        coalesce(CASE WHEN p.message IS NOT NULL AND (SELECT mill.sees_statements()) THEN p.message END, b.message) AS progress,
        CASE WHEN p.percent IS NOT NULL AND (SELECT mill.sees_statements()) THEN p.percent ELSE b.percent END AS percent,
        p.reported_at AS reported_at, CASE WHEN (SELECT mill.sees_statements()) THEN p.notices END AS notices, b.blockers
    FROM mill.visible_tasks t
        LEFT JOIN mill.backends() b ON b.pid = t.session_pid AND b.backend_start = t.session_started_at
        LEFT JOIN mill.worker_starts s ON s.id = t.claimed_by
        LEFT JOIN mill.cancel_requests r ON r.task_id = t.id
        LEFT JOIN mill.progress p ON p.task_id = t.id AND p.worker_id = t.claimed_by AND p.attempt = t.attempt
    WHERE t.state = 'running';
COMMENT ON VIEW mill.running IS 'Running tasks: where, since when, what the backend waits for and who blocks it, how far it is, its last notices';

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
        l.rate_period
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
COMMENT ON VIEW mill.queue_status IS 'Per queue: tasks by state, age of the oldest pending one, and what somebody has set';

CREATE OR REPLACE VIEW mill.priority_status AS
    SELECT p.priority, p.weight, coalesce(t.pending, 0) AS pending, coalesce(t.running, 0) AS running,
        now() - t.oldest_pending_at AS oldest_pending_age
    FROM mill.priorities p LEFT JOIN (
        SELECT priority, count(*) FILTER (WHERE state = 'pending') AS pending,
            count(*) FILTER (WHERE state = 'running') AS running,
            min(due_at) FILTER (WHERE state = 'pending') AS oldest_pending_at
        FROM mill.tasks GROUP BY priority) t USING (priority);
COMMENT ON VIEW mill.priority_status IS 'Per priority: weight, tasks that wait and run, age of the oldest one that waits';

CREATE OR REPLACE VIEW mill.limit_status AS
    SELECT l.*, coalesce(p.running, 0) AS running, coalesce(t.waiting, 0) AS waiting
    FROM mill.effective_limits l
        LEFT JOIN (SELECT limit_id AS id, count(*) AS running FROM mill.permits
            WHERE counts_until IS NULL GROUP BY limit_id) p USING (id)
        LEFT JOIN (SELECT blocking_limit_id AS id, count(*) AS waiting FROM mill.tasks
            WHERE state = 'blocked' GROUP BY blocking_limit_id) t USING (id);
COMMENT ON VIEW mill.limit_status IS 'Per limit: what it says, tasks that have its permit (running or about to), tasks that wait for one';

CREATE OR REPLACE VIEW mill.group_status AS
    SELECT g.*, a.open, a.until AS next_change_at, coalesce(t.pending, 0) AS pending,
        coalesce(t.running, 0) AS running, coalesce(t.blocked, 0) AS blocked
    FROM mill.groups g
        CROSS JOIN LATERAL mill.active_period(g.opens, g.closes, g.zone, now()) AS a
        LEFT JOIN (SELECT group_name AS name, count(*) FILTER (WHERE state = 'pending') AS pending,
                count(*) FILTER (WHERE state = 'running') AS running,
                count(*) FILTER (WHERE state = 'blocked') AS blocked
            FROM mill.tasks WHERE group_name IS NOT NULL GROUP BY group_name) t USING (name);
COMMENT ON VIEW mill.group_status IS 'Per group: what is set, whether its active period is open and until when, tasks by state';

CREATE OR REPLACE VIEW mill.history AS
    SELECT a.task_id, a.attempt, a.final, a.outcome, a.queue, a.name, a.priority, a.mode,
        a.enqueued_at, a.due_at, a.started_at, a.finished_at,
        coalesce(a.started_at, a.finished_at) - a.due_at AS wait_duration,
        a.finished_at - a.started_at AS duration,
        a.rows, a.sqlstate, a.message, a.detail, a.hint, a.context, a.position, a.notices, a.result,
        a.worker_id, s.host, s.pid AS worker_pid, a.session_pid, a.statement, a.params, a.run_id,
        -- Per backend the server tells these of no other attempts: null there.
        a.plan, (a.plan->'Plan'->>'WAL Bytes')::bigint AS wal_bytes,
        (a.plan->'Plan'->>'Shared Hit Blocks')::bigint AS blocks_hit,
        (a.plan->'Plan'->>'Shared Read Blocks')::bigint AS blocks_read,
        (a.plan->'Plan'->>'Temp Written Blocks')::bigint AS temp_blocks_written
    FROM mill.visible_attempts a LEFT JOIN mill.worker_starts s ON s.id = a.worker_id;
COMMENT ON VIEW mill.history IS 'Every attempt that ended: outcome, how long it waited and ran, error, notices, first rows; of tasks with explain the plan, and what it says of WAL and blocks';

CREATE OR REPLACE FUNCTION mill.durations_of(queue text, name text) RETURNS TABLE (attempts bigint,
    failures bigint, p50 interval, p95 interval, mean interval, last interval, last_at timestamptz, trend double precision)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*), count(*) FILTER (WHERE a.outcome NOT IN ('succeeded', 'cancelled')),
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
COMMENT ON FUNCTION mill.durations_of IS 'How long tasks of this name take: of the attempts of the last seven days (UTC) the last 500 at most. p50 to last: those that succeeded. trend: median of the last 20 of them over that of the up to 200 before; null if there are less than 40';

-- A walk over the distinct names of the index, one probe each. Whole days, so that no name is looked for
-- behind a day's worth of entries that are too old.
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
COMMENT ON VIEW mill.durations IS 'How long tasks take, by queue and name, as mill.durations_of; the first 1000 names';

CREATE OR REPLACE FUNCTION mill.message_pattern(message text) RETURNS text
LANGUAGE sql IMMUTABLE COST 1000 SET search_path = pg_catalog, pg_temp AS $$
    SELECT left(regexp_replace(regexp_replace(regexp_replace(regexp_replace(left(message, 1000),
        '\m[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\M', '#', 'g'),
        '"[^"]*"', '"…"', 'g'),
        '(^|[^[:alnum:]])''[^'']*''', '\1''…''', 'g'),
        '0x[0-9a-fA-F]+|[0-9]+([.,:-][0-9]+)*', '#', 'g'), 300)
$$;
COMMENT ON FUNCTION mill.message_pattern IS 'An error message without what differs from one time to the next: quoted names and values, numbers, dates, uuids';

-- Reads with the rights of who asks, by the view that hides what messages say.
CREATE OR REPLACE FUNCTION mill.failure_groups(since interval DEFAULT '1 day') RETURNS TABLE (outcome mill.outcome,
    sqlstate text, message text, attempts bigint, tasks bigint, first_at timestamptz, last_at timestamptz,
    queues text[], names text[], examples bigint[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.outcome, f.sqlstate, mill.message_pattern(f.message), count(*), count(DISTINCT f.task_id),
        min(f.finished_at), max(f.finished_at), array_agg(DISTINCT f.queue),
        (array_agg(DISTINCT f.name) FILTER (WHERE f.name IS NOT NULL))[1:10],
        (array_agg(f.task_id ORDER BY f.finished_at DESC))[1:5]
    FROM (SELECT a.outcome, a.sqlstate, a.message, a.task_id, a.finished_at, a.queue, a.name FROM mill.visible_attempts a
        WHERE a.finished_at > now() - since AND a.outcome <> 'succeeded' AND a.outcome <> 'cancelled'
        ORDER BY a.finished_at DESC LIMIT 10000) AS f
    GROUP BY f.outcome, f.sqlstate, mill.message_pattern(f.message)
    ORDER BY count(*) DESC, max(f.finished_at) DESC
$$;
COMMENT ON FUNCTION mill.failure_groups IS 'Attempts that failed in this time, the last 10000 at most, by outcome, SQLSTATE and mill.message_pattern, the most frequent first; names: up to 10, examples: the last 5 tasks';

CREATE OR REPLACE VIEW mill.failures AS
    SELECT g.* FROM mill.failure_groups() AS g;
COMMENT ON VIEW mill.failures IS 'What failed in the last day, by kind: mill.failure_groups';

CREATE OR REPLACE FUNCTION mill.why_blocked(task mill.tasks) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    terms record;
    period record;
    subject text;
    ahead bigint;
BEGIN
    SELECT l.* INTO terms FROM mill.limit_status l WHERE l.id = task.blocking_limit_id;
    SELECT count(*) INTO ahead FROM (SELECT FROM mill.tasks t
        WHERE t.state = 'blocked' AND t.blocking_limit_id = task.blocking_limit_id AND t.priority = task.priority
            AND t.id < task.id LIMIT 100000) AS before;
    subject := format('%s "%s"%s', CASE terms.kind WHEN 'key' THEN 'concurrency key' ELSE terms.kind::text END,
        terms.name, CASE WHEN terms.run_id <> 0 THEN format(' in run %s', terms.run_id) ELSE '' END);
    SELECT a.* INTO period FROM mill.active_period(terms.opens, terms.closes, terms.zone, now()) AS a;
    IF terms.paused THEN
        -- A queue has a state of its own that is called paused.
        RETURN format(CASE terms.kind WHEN 'queue' THEN '%s has max_running 0' ELSE '%s is paused' END, subject);
    ELSIF NOT period.open THEN
        RETURN format('%s is outside its active period (%s to %s, %s) until %s', subject,
            to_char(terms.opens, 'HH24:MI'), to_char(terms.closes, 'HH24:MI'), terms.zone,
            date_trunc('second', period.until));
    ELSIF terms.running >= terms.max_running THEN
        RETURN format('%s has %s of %s tasks running, and %s%s of its priority are before this one', subject,
            terms.running, terms.max_running, CASE ahead WHEN 100000 THEN 'at least ' ELSE '' END, ahead);
    ELSIF terms.rate_starts IS NOT NULL THEN
        RETURN format('%s starts at most %s tasks in %s, and %s%s of its priority are before this one', subject,
            terms.rate_starts, terms.rate_period, CASE ahead WHEN 100000 THEN 'at least ' ELSE '' END, ahead);
    END IF;
    RETURN format('it is about to get the permit of %s', subject);
END
$$;
COMMENT ON FUNCTION mill.why_blocked IS 'mill.why for a task that waits for a permit';

CREATE OR REPLACE FUNCTION mill.why(id bigint) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    last_attempt mill.attempts;
    serving record;
    backend record;
    place text;
    ahead bigint;
    kept bigint;
BEGIN
    SELECT t.* INTO task FROM mill.tasks t WHERE t.id = why.id;
    SELECT a.* INTO last_attempt FROM mill.attempts a
        WHERE a.task_id = why.id ORDER BY a.finished_at DESC LIMIT 1;
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
        SELECT s.host || ':' || s.pid INTO place
            FROM mill.worker_starts s WHERE s.id = task.claimed_by;
        place := coalesce(place, left(task.claimed_by::text, 8));
        SELECT b.* INTO backend FROM mill.backends() b WHERE b.pid = task.session_pid;
        IF EXISTS (SELECT FROM mill.cancel_requests r WHERE r.task_id = task.id) THEN
            RETURN format('it is running on %s and about to be cancelled', place);
        ELSIF NOT EXISTS (SELECT FROM mill.workers w WHERE w.id = task.claimed_by
            AND now() - w.heartbeat_at < w.orphan_timeout)
        THEN
            RETURN format('its worker %s has not been heard of: the task is about to be reclaimed', place);
        ELSIF cardinality(backend.blocked_by) > 0 THEN
            RETURN format('it is running on %s since %s, blocked by backend %s', place,
                date_trunc('second', task.claimed_at), (SELECT string_agg(format('%s (%s)', b->>'pid',
                    coalesce('task ' || (b->>'task_id'), concat_ws(', ', nullif(b->>'application', ''),
                        'user ' || (b->>'user'), b->>'state'))), ', ') FROM jsonb_array_elements(backend.blockers) AS b));
        END IF;
        RETURN format('it is running on %s since %s%s', place, date_trunc('second', task.claimed_at),
            CASE WHEN backend.wait_event_type <> 'Client'
                THEN format(', waiting for %s: %s', backend.wait_event_type, backend.wait_event) END);
    END IF;

    IF task.state = 'blocked' THEN
        RETURN mill.why_blocked(task);
    ELSIF task.state = 'scheduled' AND task.due_at > now() THEN
        IF task.attempt > 0 AND last_attempt.task_id IS NOT NULL THEN
            RETURN format('attempt %s ended as %s (%s); the next one is due at %s, in %s',
                last_attempt.attempt, last_attempt.outcome,
                coalesce(mill.visible_message(last_attempt.message), last_attempt.sqlstate, 'no message'),
                date_trunc('second', task.due_at), date_trunc('second', task.due_at - now()));
        END IF;
        RETURN format('it is not due before %s, in %s', date_trunc('second', task.due_at),
            date_trunc('second', task.due_at - now()));
    ELSIF EXISTS (SELECT FROM mill.queues q WHERE q.name = task.queue AND q.paused) THEN
        RETURN format('queue "%s" is paused', task.queue);
    END IF;

    SELECT count(*) AS workers, coalesce(sum((w.profiles->>task.run_as::text)::integer), 0) AS readers,
        bool_and(w.draining) AS draining,
        (SELECT count(DISTINCT t.session_pid) FROM mill.tasks t
            WHERE t.state = 'running' AND t.run_as = task.run_as AND t.claimed_by = ANY (array_agg(w.id))) AS busy
        INTO serving
        FROM mill.workers w
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
    SELECT count(*) INTO ahead FROM (SELECT FROM mill.tasks t
        WHERE t.state = 'pending' AND t.queue = task.queue AND t.priority = task.priority
            AND t.id < task.id LIMIT 100000) AS before;
    -- Readers that serve reserved tasks only are no help to others.
    IF task.priority <> 'reserved' THEN
        SELECT coalesce(sum(mill.reserved_readers(w.id)), 0) INTO kept FROM mill.workers w
            WHERE (w.queues IS NULL OR task.queue = ANY (w.queues))
                AND now() - w.heartbeat_at < w.orphan_timeout;
        IF kept > 0 AND serving.busy < serving.readers AND serving.readers - kept <= serving.busy THEN
            RETURN format('%s of %s readers that serve queue "%s" are kept for reserved tasks, and the others are busy',
                kept, serving.readers, task.queue);
        END IF;
    END IF;
    IF serving.busy < serving.readers THEN
        RETURN format('it is about to be claimed: %s of %s readers that serve queue "%s" are idle',
            serving.readers - serving.busy, serving.readers, task.queue);
    END IF;
    RETURN format('all %s readers that serve queue "%s" are busy, and %s%s tasks of its priority are before it',
        serving.readers, task.queue, CASE ahead WHEN 100000 THEN 'at least ' ELSE '' END, ahead);
END
$$;
COMMENT ON FUNCTION mill.why(bigint) IS 'One sentence: why this task is not running now, or what it is doing; null if there is no such task';

-- The distinct queues are a walk over the pending index, one probe each; then so many entries of each. A paused
-- queue costs one probe, however much it holds. Scheduled tasks that are due, because where no worker is nobody
-- promotes them.
CREATE OR REPLACE FUNCTION mill.scale_hint(queues text[] DEFAULT NULL) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
-- Statistics of a table that is empty one moment and full the next are no guide.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    WITH RECURSIVE walk AS (
        (SELECT t.queue FROM mill.tasks t WHERE t.state = 'pending' ORDER BY t.queue LIMIT 1)
        UNION ALL
        SELECT (SELECT t.queue FROM mill.tasks t WHERE t.state = 'pending' AND t.queue > walk.queue
            ORDER BY t.queue LIMIT 1)
        FROM walk WHERE walk.queue IS NOT NULL
    ), paused AS MATERIALIZED (
        SELECT q.name FROM mill.queues q WHERE q.paused
    ), waiting AS MATERIALIZED (
        SELECT FROM walk CROSS JOIN LATERAL (
            SELECT FROM mill.tasks t WHERE t.state = 'pending' AND t.queue = walk.queue LIMIT 100000) AS task
        WHERE (scale_hint.queues IS NULL OR walk.queue = ANY (scale_hint.queues))
            AND walk.queue NOT IN (SELECT p.name FROM paused p)
        LIMIT 100000
    ), due AS MATERIALIZED (
        SELECT t.queue FROM mill.tasks t WHERE t.state = 'scheduled' AND t.due_at <= now() LIMIT 100000
    )
    SELECT (SELECT count(*) FROM waiting)
        + (SELECT count(*) FROM due d
            WHERE (scale_hint.queues IS NULL OR d.queue = ANY (scale_hint.queues))
                AND d.queue NOT IN (SELECT p.name FROM paused p))
        + (SELECT count(*) FROM mill.tasks t WHERE t.state = 'running'
            AND (scale_hint.queues IS NULL OR t.queue = ANY (scale_hint.queues)))
$$;
COMMENT ON FUNCTION mill.scale_hint IS 'How many readers could work now, in all queues or in these: tasks that wait for one (pending, or scheduled and due) and tasks that run. Divide it by the readers of a worker to know how many workers to have. Not counted: tasks of paused queues, tasks that wait for a permit (blocked: no further worker helps them), tasks that are not due. What runs counts also in a paused queue, so that a busy fleet is not taken away. Waiting tasks beyond 100000 are not counted any more. No regard to profiles: a task whose profile no worker has counts, too';

-- Who may do what --------------------------------------------------------------------------------

-- Everybody may finish a claim whose token they hold, and nothing else.
GRANT USAGE ON SCHEMA mill TO PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA mill FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA mill FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mill.complete TO PUBLIC;

GRANT SELECT, INSERT, UPDATE, DELETE
    ON mill.tasks, mill.workers, mill.cancel_requests, mill.dedup_keys, mill.progress TO mill_worker;
GRANT SELECT, INSERT ON mill.attempts, mill.worker_starts TO mill_worker;
GRANT SELECT ON mill.queues, mill.settings, mill.schema_version, mill.queue_status, mill.running,
    mill.priorities, mill.priority_status, mill.groups, mill.limits, mill.limit_status TO mill_worker;
GRANT EXECUTE ON FUNCTION mill.fail, mill.release_claim, mill.reclaim, mill.record_attempt, mill.live_sessions,
    mill.prepare_history, mill.prune, mill.backends, mill.first_state, mill.has_group_permit, mill.release_permits,
    mill.grant_permits, mill.grant_waiting_permits, mill.reconcile_limits, mill.reserved_readers, mill.advance_run,
    mill.run_is_cancelled, mill.active_period, mill.resolve_local_time, mill.lock_due_schedules, mill.tick,
    mill.tick_trigger, mill.log_reclaimed, mill.put_schedule, mill.remove_schedules, mill.prune_schedule_log
    TO mill_worker;
GRANT SELECT, INSERT, DELETE ON mill.schedule_declaration_errors TO mill_worker, mill_operator;
GRANT SELECT ON mill.schedules, mill.schedule_status TO mill_worker;
GRANT SELECT, INSERT ON mill.run_events TO mill_worker;
GRANT SELECT (id, state, cancelled_at) ON mill.runs TO mill_worker;

GRANT EXECUTE ON FUNCTION mill.enqueue, mill.enqueue_many, mill.submit, mill.start_run, mill.add_run_task,
    mill.profile TO mill_producer;
GRANT SELECT ON mill.my_profiles TO mill_producer;
GRANT SELECT ON mill.settings, mill.schema_version TO mill_producer;

GRANT SELECT ON ALL TABLES IN SCHEMA mill TO mill_viewer;
-- Whoever knows the token of a running task may complete it, whoever knows the key of a profile may have
-- tasks run as it: nobody is given these. What statements are and say has views of its own.
DO $$
DECLARE
    kept record;
    open text;
BEGIN
    FOR kept IN SELECT * FROM (VALUES
        ('tasks', ARRAY['token'], ARRAY['statement', 'params']),
        ('attempts', ARRAY['token'],
            ARRAY['statement', 'params', 'notices', 'result', 'plan', 'message', 'detail', 'hint', 'context']),
        ('job_tasks', '{}', ARRAY['statement', 'params']),
        ('run_tasks', '{}', ARRAY['statement', 'params', 'result', 'message']),
        ('run_events', '{}', ARRAY['result', 'message']),
        ('progress', '{}', ARRAY['percent', 'message', 'notices']),
        ('runs', '{}', ARRAY['params']),
        ('schedules', '{}', ARRAY['params', 'definition']),
        ('schedule_log', '{}', ARRAY['message']),
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
GRANT EXECUTE ON FUNCTION mill.sees_statements TO mill_viewer, mill_worker;
GRANT EXECUTE ON FUNCTION mill.durations_of, mill.message_pattern, mill.failure_groups TO mill_viewer;
GRANT EXECUTE ON FUNCTION mill.why(bigint), mill.why(bigint, text), mill.job_definition, mill.upstream,
    mill.downstream, mill.live_sessions, mill.backends, mill.reserved_readers,
    mill.active_period, mill.resolve_local_time, mill.is_active, mill.schedule_test,
    mill.should_fire, mill.evaluate_trigger, mill.blocking_run, mill.measure_query, mill.scale_hint TO mill_viewer;

GRANT EXECUTE ON FUNCTION mill.cancel, mill.retry, mill.pause, mill.resume, mill.share_commits,
    mill.drain, mill.set_max_running, mill.set_rate, mill.set_group, mill.set_active_period,
    mill.drop_group, mill.set_weights, mill.set_reserved_capacity, mill.set_job, mill.enable_job, mill.set_dependency,
    mill.drop_dependency, mill.cancel_run, mill.restart_run, mill.retry_run_task, mill.set_schedule,
    mill.put_schedule, mill.remove_schedules, mill.enable_schedule, mill.adjust_schedule, mill.run_now
    TO mill_operator;
GRANT UPDATE ON mill.settings TO mill_operator;

COMMIT;
