-- Schema of pgmill: the interface between enqueue, worker and psql.
--
-- Apply with `psql -f schema.sql` or `pgmill init`, as superuser or as a role with CREATEROLE and
-- CREATE on the database. Applying the file again changes nothing.
--
-- Contents, in the order in which a task passes through the files (make schema writes the list):
--
--   01_roles                   Roles: the owner of all objects, and the rights of programs and people
--   02_types                   Types: enums and domains
--   03_settings                Settings of the fleet, version of the schema, and audit of actions
--   04_capacity                Capacity: priorities, queues, profiles, groups and limits
--   05_maintenance             Maintenance windows: periods in which the whole fleet is paused
--   06_queue_conditions        Conditions of queues: workers claim nothing while one does not hold
--   07_routines                Routines of profiles: a profile restricted to calls of allowed routines
--   08_targets                 Targets: other databases in which tasks run
--   09_tasks                   Tasks: live tasks and their deduplication keys
--   10_attempts                Attempts: the history, in daily partitions
--   11_prune                   Prune: deletes what is older than its retention, or no longer needed
--   12_workers                 Workers: live ones with their heartbeats, cancel requests, progress
--   13_limits                  Limits of a task: which ones apply, and the creation of missing ones
--   14_permits                 Permits: blocked <-> pending
--   15_suspects                Suspects: tasks that ran when the server crashed
--   16_watched_lanes           Watched lanes: whether an enqueue has to wake a worker
--   17_enqueue                 Enqueue: -> scheduled | blocked | pending, in the caller's transaction
--   18_notifications           Notifications: which events are reported to whom, and the outbox
--   19_finish                  Finish: complete, fail, release, reclaim: running -> the other states
--   20_notification_delivery   Delivery of notifications: claim, end of an attempt, backlogs
--   21_operator                Operator functions: cancel, retry, pause, resume, drain
--   22_subscriptions           Subscriptions: functions for operators, and status for viewers
--   23_task_changes            Changes of waiting tasks: -> scheduled | blocked | pending
--   24_task_purge              Purge: all waiting tasks of a queue -> finished
--   25_jobs                    Jobs: named sets of tasks with edges
--   26_dependencies            Dependencies: edges that hold in every run that contains both tasks
--   27_job_versions            Versions of jobs: what each change of a definition changed
--   28_schedules               Schedules: when jobs run automatically
--   29_runs                    Runs: tables, start, tasks added later
--   30_unstored                Unstored data of runs: erased when the run ends
--   31_run_advance             Advance of runs: waiting -> ready -> released -> finished
--   32_run_approvals           Approvals: tasks of a run that a person has to approve
--   33_run_control             Control of runs: cancel, restart, rerun, and the retry of a task
--   34_run_deadlines           Deadlines and timeouts of runs
--   35_run_notifications       Notifications of the end of a run, in its transaction
--   36_run_status              Status of runs: their tasks by state
--   37_schedule_backfills      Backfills: runs of a schedule for instants in the past
--   38_schedule_run_now        Runs of schedules that an operator starts
--   39_schedule_ticks          Ticks of schedules: whether a due schedule fires, its runs and its log
--   40_idempotency             Idempotency keys of requests
--   41_schedule_views          Status of schedules, the runs that they fired, and a dry run of a tick
--   42_views                   Monitoring: running tasks, status, history, failures, run times
--   43_citus                   Citus: exactly once for tasks that write distributed tables
--   44_sequences               Sequences that are behind the rows of their tables
--   45_wait                    Wait: procedures that return when a task or a run has ended
--   46_why                     Why: one sentence about a task or a run
--   47_grants                  Privileges on all objects, and the end of the transaction
--   48_statistics              ANALYZE of tables that hold rows and have no statistics
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
