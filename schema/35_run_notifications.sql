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
