-- Schema of pgmill: the interface between enqueue, worker and psql.
--
-- Apply with `psql -f schema.sql` or `pgmill init`, as superuser or as a role with CREATEROLE and
-- CREATE on the database. Applying the file again changes nothing.
--
-- Contents, in the order in which a task passes through them:
--   01_roles, 02_types
--   03_settings        settings of the fleet, version of the schema, audit: actions of operators
--   04_capacity        priorities, queues, profiles, groups, limits
--   04_targets         other databases in which tasks run
--   04_queue_conditions   while which conditions workers claim from a queue
--   05_tasks           live tasks, one live task per deduplication key
--   06_attempts        one row per finished attempt, one partition per day
--   06_prune           what is old or no longer needed is deleted
--   07_workers         live workers, all workers since the start of the history, orders to them, progress
--   08_limits          which limits apply to a task, and the creation of missing ones
--   08_permits         blocked <-> pending
--   08_suspects        the tasks that ran when the server crashed
--   08_watched_lanes   whether an enqueue notifies the workers
--   09_enqueue         -> scheduled | blocked | pending
--   09_notifications   events that are reported, and the outbox of notifications
--   (claim)            pending -> running      crates/queue/src/transition/claim.rs
--   10_finish          complete: running -> finished     in the task's own transaction
--                      fail, release_claim, reclaim: running -> scheduled | blocked | pending | finished
--   11_notification_delivery   notifications -> sent | dead
--   11_operator        cancel, retry, pause, resume, drain
--   11_subscriptions   set, remove, enable and test subscriptions; their status
--   12_jobs            graphs of tasks
--   13_dependencies    edges that hold in every run, and the lineage
--   14_schedules       when jobs run automatically
--   15_runs            a run is a frozen copy of jobs
--   16_run_advance     ready tasks are inserted into mill.tasks
--   16_run_control     cancel, restart and rerun of runs
--   16_run_notifications   notifications of the end of a run
--   17_schedule_ticks  a fire is a run with a schedule and a fire time; each happens once
--   18_schedule_views  status of schedules, the runs that they fired, dry run
--   19_views           monitoring: running tasks, status, history, failures, input for autoscalers
--   20_citus           two-phase commit on a coordinator of Citus
--   20_sequences       sequences that are behind their tables, as after a switch to a logical replica
--   20_wait            CALL mill.wait returns when a task has ended
--   20_why             why a task is not running
--   21_grants          privileges that are not granted beside their object
--   22_statistics      ANALYZE of tables without statistics, after the transaction
--
-- All names are schema-qualified and search_path is pg_catalog throughout, so that objects in a caller's
-- schema cannot shadow them. PostgreSQL checks SQL functions, views and the types of variables when it
-- creates them, so the files create each object before the objects that use it.
--
-- The transaction begins here and ends in 21_grants.sql.

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
