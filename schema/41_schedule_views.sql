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
