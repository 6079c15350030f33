-- Everything that version 2 changes in existing tables, types and functions. Columns have no constraints and only
-- constant defaults, so that no table is rewritten or scanned: the functions that write these columns check them.

-- These values can be used only after the commit, so views and SQL functions compare them as text.
ALTER TYPE mill.expected ADD VALUE 'always';
ALTER TYPE mill.run_task_state ADD VALUE 'skipped';
ALTER TYPE mill.outcome ADD VALUE 'interrupted';
ALTER TYPE mill.limit_kind ADD VALUE 'crash';
CREATE TYPE mill.isolation AS ENUM ('read_committed', 'repeatable_read', 'serializable');
CREATE TYPE mill.task_options AS (tags text[], metadata jsonb, isolation mill.isolation, store_params boolean,
    store_output boolean, traceparent text);
ALTER TABLE mill.tasks ADD COLUMN options mill.task_options;
ALTER TABLE mill.attempts ADD COLUMN options mill.task_options;
ALTER TABLE mill.job_tasks ADD COLUMN options mill.task_options, ADD COLUMN enabled boolean NOT NULL DEFAULT true;
ALTER TABLE mill.run_tasks ADD COLUMN options mill.task_options, ADD COLUMN parent_failed boolean NOT NULL DEFAULT false;
ALTER TABLE mill.jobs ADD COLUMN tags text[], ADD COLUMN metadata jsonb;
ALTER TABLE mill.runs ADD COLUMN tags text[], ADD COLUMN metadata jsonb, ADD COLUMN restarted_at timestamptz;
-- The constraint is checked for each run of the retention period: 0.3 s for a million runs.
ALTER TABLE mill.runs ADD COLUMN skipped integer NOT NULL DEFAULT 0, DROP CONSTRAINT every_task_counts,
    ADD CONSTRAINT every_task_counts CHECK (state = 'running'
        OR tasks = succeeded + failed + ignored + cancelled + upstream_failed + skipped);
ALTER TABLE mill.workers ADD COLUMN error text, ADD COLUMN error_since timestamptz, ADD COLUMN destinations text[],
    ADD COLUMN session_pid integer, ADD COLUMN session_started_at timestamptz, ADD COLUMN unconnected jsonb,
    ALTER COLUMN session_lock_key DROP NOT NULL;
ALTER TABLE mill.profiles ADD COLUMN routines text[];
ALTER TABLE mill.queues ADD COLUMN store_params boolean NOT NULL DEFAULT true,
    ADD COLUMN store_output boolean NOT NULL DEFAULT true,
    ADD COLUMN max_replication_lag interval CHECK (max_replication_lag BETWEEN '5 seconds' AND '1 hour'),
    ADD COLUMN max_snapshot_age interval CHECK (max_snapshot_age >= '1 second'),
    ADD COLUMN max_active_sessions integer CHECK (max_active_sessions >= 0),
    ADD COLUMN held_back text;
ALTER TABLE mill.settings
    ADD COLUMN backlog_wait interval NOT NULL DEFAULT '5 minutes' CHECK (backlog_wait > '0'),
    ADD COLUMN slow_factor double precision NOT NULL DEFAULT 4 CHECK (slow_factor BETWEEN 1 AND 1000000),
    ADD COLUMN default_group text;
DROP FUNCTION mill.check_statement(text, jsonb);
DROP FUNCTION mill.reset_run_tasks(bigint, bigint[]);
DROP FUNCTION mill.evaluate_join(mill.join_mode, integer, integer, integer);
DROP FUNCTION mill.propagate_completion(bigint, bigint[], boolean, integer);
DROP FUNCTION mill.fire_or_skip(mill.schedules, timestamptz, bigint, interval);
ALTER TABLE mill.schedules ADD COLUMN tags text[], ADD COLUMN metadata jsonb, ADD COLUMN queued_later timestamptz[];
ALTER TABLE mill.schedules ADD COLUMN new_timing text, ADD COLUMN new_timing_at timestamptz,
    ADD COLUMN new_timing_error text, ADD COLUMN trigger_checked_at timestamptz, ADD COLUMN trigger_result text;
CREATE TYPE mill.backfill_state AS ENUM ('running', 'paused', 'finished', 'cancelled');
-- schema.sql creates the index that replaces runs_fire.
ALTER TABLE mill.runs ADD COLUMN backfill_id bigint, ADD COLUMN expected_duration interval,
    ADD COLUMN late_at timestamptz, ADD COLUMN late_since timestamptz,
    ADD COLUMN timeout_at timestamptz, ADD COLUMN cancel_reason text;
ALTER TABLE mill.jobs ADD COLUMN expected_duration interval, ADD COLUMN deadline interval,
    ADD COLUMN run_timeout interval;
ALTER TABLE mill.schedules ADD COLUMN expected_duration interval, ADD COLUMN deadline interval,
    ADD COLUMN run_timeout interval;
ALTER TABLE mill.job_tasks ADD COLUMN expected_duration interval, ADD COLUMN approval boolean NOT NULL DEFAULT false,
    ADD COLUMN approval_note text;
ALTER TABLE mill.run_tasks ADD COLUMN expected_duration interval, ADD COLUMN approval boolean NOT NULL DEFAULT false,
    ADD COLUMN approval_note text, ADD COLUMN approval_since timestamptz, ADD COLUMN approved boolean,
    ADD COLUMN decided_by text;
DROP INDEX mill.runs_fire;
ALTER TABLE mill.schedules ADD COLUMN timing_finished_at timestamptz;
ALTER TABLE mill.run_tasks ADD COLUMN added_by bigint;
ALTER TABLE mill.limits ADD COLUMN explicit boolean NOT NULL DEFAULT false;
ALTER TABLE mill.limit_reconciliation ADD COLUMN pause interval NOT NULL DEFAULT '1 second';
ALTER TABLE mill.tasks ADD COLUMN receipt uuid;
ALTER TABLE mill.attempts ADD COLUMN receipt uuid;
DROP FUNCTION mill.reclaim(uuid, integer);
