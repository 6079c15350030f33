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
