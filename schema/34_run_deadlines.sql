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
