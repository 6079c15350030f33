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
