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
