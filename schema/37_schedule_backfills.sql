-- Backfills: runs of a schedule for instants in the past.
--
-- Only workers compute instants. A worker locks the backfill, computes the next instants of its timing, and
-- starts their runs in the same transaction that moves next_at. So each instant is started once, whichever
-- worker dies. A backfill changes neither the next fire of its schedule nor the state of its last run, and
-- its runs do not count for overlap.

CREATE TABLE IF NOT EXISTS mill.backfills (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id bigint NOT NULL,
    timing text NOT NULL,
    from_at timestamptz NOT NULL,
    to_at timestamptz NOT NULL,
    next_at timestamptz,
    max_running integer NOT NULL DEFAULT 1 CONSTRAINT backfill_max_running CHECK (max_running BETWEEN 1 AND 1000),
    again boolean NOT NULL DEFAULT false,
    params jsonb NOT NULL DEFAULT '{}' CONSTRAINT backfill_params_by_name CHECK (jsonb_typeof(params) = 'object'),
    state mill.backfill_state NOT NULL DEFAULT 'running',
    instants integer,
    fired integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    error text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL DEFAULT session_user,
    finished_at timestamptz,
    CONSTRAINT backfill_period CHECK (from_at <= to_at),
    CONSTRAINT ended_backfill_has_time CHECK ((state IN ('finished', 'cancelled')) = (finished_at IS NOT NULL))
);
COMMENT ON TABLE mill.backfills IS
    'Backfills: runs of schedules for the instants of a period in the past. Kept as long as mill.schedule_log, and as '
    'long as one of their runs';
COMMENT ON COLUMN mill.backfills.timing IS 'Timing of the schedule when the backfill was created';
COMMENT ON COLUMN mill.backfills.from_at IS 'Start of the period, inclusive, like to_at';
COMMENT ON COLUMN mill.backfills.next_at IS
    'Earlier instants have been started or skipped; null: all instants have';
COMMENT ON COLUMN mill.backfills.max_running IS 'Maximum number of runs of the backfill that are in progress';
COMMENT ON COLUMN mill.backfills.again IS
    'Whether an instant for which the schedule has a run already is started again instead of skipped';
COMMENT ON COLUMN mill.backfills.params IS 'Parameters of the runs. They take precedence over those of the schedule';
COMMENT ON COLUMN mill.backfills.instants IS
    'Number of instants in the period; null: no worker has counted them yet';
COMMENT ON COLUMN mill.backfills.fired IS 'Number of instants whose run was started';
COMMENT ON COLUMN mill.backfills.skipped IS 'Number of instants that were skipped, because they had a run already';
COMMENT ON COLUMN mill.backfills.error IS
    'Why the backfill was paused: the error of its next instant; null: an operator paused it, or it is not paused';
CREATE INDEX IF NOT EXISTS backfills_schedule ON mill.backfills (schedule_id);
-- Used by the poll of every worker.
CREATE INDEX IF NOT EXISTS backfills_running ON mill.backfills (id) WHERE state = 'running';
GRANT SELECT (id, state, schedule_id, next_at, max_running) ON mill.backfills TO mill_worker;
GRANT SELECT (schedule_id, backfill_id) ON mill.runs TO mill_worker;

CREATE OR REPLACE VIEW mill.backfill_status AS
    SELECT b.id, s.name AS schedule, b.state, b.timing, b.from_at, b.to_at, b.next_at, b.max_running, b.again,
        CASE WHEN (SELECT mill.sees_statements()) THEN b.params END AS params,
        b.instants, b.fired, b.skipped, n.running, n.succeeded, n.failed, n.cancelled,
        CASE WHEN (SELECT mill.sees_statements()) THEN b.error END AS error, b.created_at, b.created_by, b.finished_at
    FROM mill.backfills b JOIN mill.schedules s ON s.id = b.schedule_id CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE r.state = 'running') AS running,
            count(*) FILTER (WHERE r.state = 'succeeded') AS succeeded,
            count(*) FILTER (WHERE r.state = 'failed') AS failed,
            count(*) FILTER (WHERE r.state = 'cancelled') AS cancelled
        FROM mill.runs r WHERE r.backfill_id = b.id) AS n;
COMMENT ON VIEW mill.backfill_status IS
    'Backfills with the number of their runs by state. Runs that are no longer in history do not count';

-- Operators ---------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.backfill_schedule(name text, from_at timestamptz, to_at timestamptz,
    options jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    s mill.schedules;
    unknown text;
    created bigint;
BEGIN
    options := mill.without_nulls(coalesce(options, '{}'));
    SELECT k INTO unknown FROM jsonb_object_keys(options) AS k
        WHERE k <> ALL (ARRAY['max_running', 'again', 'params']);
    IF FOUND THEN
        RAISE EXCEPTION 'unknown option "%" of a backfill', unknown USING ERRCODE = '22023',
            HINT = 'The options are max_running, again and params.';
    END IF;
    SELECT x.* INTO s FROM mill.schedules x WHERE x.name = backfill_schedule.name;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF s.removed_at IS NOT NULL THEN
        RAISE EXCEPTION 'the declaration of schedule "%" was removed at %', s.name, date_trunc('second', s.removed_at)
            USING ERRCODE = '55000', HINT = 'Declare the schedule again.';
    ELSIF s.mode <> 'scheduled' THEN
        RAISE EXCEPTION 'schedule "%" has no instants: its timing is %', s.name,
            CASE s.mode WHEN 'manual' THEN 'manual' ELSE 'a trigger' END
            USING ERRCODE = '22023', HINT = 'To start one run, use pgmill schedule run-now.';
    ELSIF from_at > to_at THEN
        RAISE EXCEPTION 'the period begins at %, after its end at %', from_at, to_at USING ERRCODE = '22023';
    ELSIF to_at > now() THEN
        RAISE EXCEPTION 'the period ends at %, which is in the future', to_at USING ERRCODE = '22023',
            HINT = 'The schedule itself fires for future instants.';
    ELSIF jsonb_typeof(coalesce(options->'params', '{}')) <> 'object' THEN
        RAISE EXCEPTION 'params must be a JSON object' USING ERRCODE = '22023';
    ELSIF coalesce((options->>'max_running')::integer, 1) NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'max_running must be from 1 to 1000' USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_size('params of the backfill are', options->'params');
    INSERT INTO mill.backfills (schedule_id, timing, from_at, to_at, next_at, max_running, again, params)
        VALUES (s.id, s.timing, from_at, to_at, from_at, coalesce((options->>'max_running')::integer, 1),
            coalesce((options->>'again')::boolean, false), coalesce(options->'params', '{}'))
        RETURNING backfills.id INTO created;
    PERFORM mill.record_audit('backfill_schedule', 'schedule ' || s.name,
        options - 'params' || jsonb_build_object('backfill', created, 'from', from_at, 'to', to_at));
    RETURN created;
END
$$;
COMMENT ON FUNCTION mill.backfill_schedule IS
    'Starts a run for each instant of a schedule from from_at to to_at, both inclusive, and returns the id of the '
    'backfill; null: the schedule does not exist. options: {"max_running": 1, "again": false, "params": {}}. Workers '
    'start the runs, in order, with fire_at set to the instant, and at most max_running at a time';
GRANT EXECUTE ON FUNCTION mill.backfill_schedule TO mill_operator;

CREATE OR REPLACE FUNCTION mill.change_backfill(backfill_id bigint, wanted mill.backfill_state, action text)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    b mill.backfills;
BEGIN
    SELECT x.* INTO b FROM mill.backfills x WHERE x.id = backfill_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF b.finished_at IS NOT NULL AND b.state <> wanted THEN
        RAISE EXCEPTION 'backfill % is %', b.id, b.state USING ERRCODE = '55000',
            HINT = 'Start another one with pgmill schedule backfill.';
    ELSIF b.state <> wanted THEN
        UPDATE mill.backfills x SET state = wanted, error = NULL,
                finished_at = CASE WHEN wanted = 'cancelled' THEN now() END
            WHERE x.id = b.id;
        PERFORM mill.record_audit(action, 'schedule ' || s.name, jsonb_build_object('backfill', b.id))
            FROM mill.schedules s WHERE s.id = b.schedule_id;
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.change_backfill IS
    'For mill.pause_backfill, mill.resume_backfill and mill.cancel_backfill: changes the state of a backfill that has '
    'not ended. Returns false if it does not exist';

CREATE OR REPLACE FUNCTION mill.pause_backfill(backfill_id bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.change_backfill(backfill_id, 'paused', 'pause_backfill')
$$;
COMMENT ON FUNCTION mill.pause_backfill IS
    'Pauses a backfill: it starts no more runs until mill.resume_backfill; runs in progress continue. Returns false if '
    'it does not exist. Raises an error if it has ended';
GRANT EXECUTE ON FUNCTION mill.pause_backfill TO mill_operator;

CREATE OR REPLACE FUNCTION mill.resume_backfill(backfill_id bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.change_backfill(backfill_id, 'running', 'resume_backfill')
$$;
COMMENT ON FUNCTION mill.resume_backfill IS
    'Resumes a paused backfill at its next instant. Returns false if it does not exist. Raises an error if it has '
    'ended';
GRANT EXECUTE ON FUNCTION mill.resume_backfill TO mill_operator;

CREATE OR REPLACE FUNCTION mill.cancel_backfill(backfill_id bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.change_backfill(backfill_id, 'cancelled', 'cancel_backfill')
$$;
COMMENT ON FUNCTION mill.cancel_backfill IS
    'Ends a backfill: it starts no more runs; runs in progress continue. Returns false if it does not exist. Raises an '
    'error if it has finished';
GRANT EXECUTE ON FUNCTION mill.cancel_backfill TO mill_operator;

-- Workers -----------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.lock_backfills()
RETURNS TABLE (id bigint, timing text, from_at timestamptz, to_at timestamptz, next_at timestamptz, counted boolean,
    room integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    b mill.backfills;
    in_progress integer;
BEGIN
    -- Asynchronous commit is safe here, as for a tick: WAL is written in order.
    PERFORM set_config('synchronous_commit', 'off', true);
    FOR b IN SELECT x.* FROM mill.backfills x WHERE x.state = 'running' AND NOT (SELECT mill.fleet_paused())
        ORDER BY x.id FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        SELECT count(*) INTO in_progress FROM mill.runs r
            WHERE r.schedule_id = b.schedule_id AND r.state = 'running' AND r.backfill_id = b.id;
        IF b.next_at IS NULL AND in_progress = 0 THEN
            UPDATE mill.backfills x SET state = 'finished', finished_at = now() WHERE x.id = b.id;
            CONTINUE;
        END IF;
        id := b.id;
        timing := b.timing;
        from_at := b.from_at;
        to_at := b.to_at;
        next_at := b.next_at;
        counted := b.instants IS NOT NULL;
        room := CASE WHEN b.next_at IS NULL THEN 0 ELSE greatest(b.max_running - in_progress, 0) END;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.lock_backfills IS
    'Locks the running backfills for the caller''s transaction, and finishes those whose last run has ended. room: '
    'number of runs that may start now. counted: whether the instants have been counted';
GRANT EXECUTE ON FUNCTION mill.lock_backfills TO mill_worker;

CREATE OR REPLACE FUNCTION mill.advance_backfill(plan jsonb, OUT fired integer, OUT skipped integer, OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    b mill.backfills;
    s mill.schedules;
    room integer := (plan->>'room')::integer;
    problem text := plan->>'error';
    one_fire_at timestamptz;
    started bigint;
BEGIN
    fired := 0;
    skipped := 0;
    more := false;
    SELECT x.* INTO b FROM mill.backfills x WHERE x.id = (plan->>'id')::bigint;
    -- A session that holds the row of the schedule can wait for that of the backfill, so this function does
    -- not wait for the row of the schedule. The next poll tries again.
    SELECT x.* INTO s FROM mill.schedules x WHERE x.id = b.schedule_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF s.removed_at IS NOT NULL THEN
        problem := format('the declaration of schedule "%s" was removed', s.name);
    END IF;
    FOR one_fire_at IN SELECT i.value::timestamptz
        FROM jsonb_array_elements_text(plan->'instants') WITH ORDINALITY AS i(value, place) ORDER BY i.place
    LOOP
        b.next_at := one_fire_at;
        EXIT WHEN problem IS NOT NULL;
        IF NOT b.again AND EXISTS (SELECT FROM mill.runs r WHERE r.schedule_id = s.id AND r.fire_at = one_fire_at) THEN
            skipped := skipped + 1;
        ELSIF room = 0 THEN
            EXIT;
        ELSE
            BEGIN
                SELECT r.run_id INTO started
                    FROM mill.create_run(s.jobs, s.params || b.params, s, one_fire_at, 'backfill', NULL) AS r;
            EXCEPTION WHEN OTHERS THEN
                -- The next step starts the run.
                IF mill.is_temporary(SQLSTATE) THEN
                    RAISE;
                END IF;
                GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT;
                EXIT;
            END;
            UPDATE mill.runs r SET backfill_id = b.id WHERE r.id = started;
            PERFORM mill.log_schedule_event(s.id, 'fired', format('backfill %s', b.id), one_fire_at, 'backfill',
                run_id => started);
            fired := fired + 1;
            room := room - 1;
        END IF;
        b.next_at := NULL;
    END LOOP;
    IF b.next_at IS NULL OR jsonb_array_length(plan->'instants') = 0 THEN
        b.next_at := (plan->>'next_at')::timestamptz;
        -- The caller's next pass also finishes a backfill that has skipped its last instants.
        more := problem IS NULL AND (room > 0 OR b.next_at IS NULL);
    END IF;
    UPDATE mill.backfills x SET next_at = b.next_at, instants = coalesce(x.instants, (plan->>'count')::integer),
            fired = x.fired + advance_backfill.fired, skipped = x.skipped + advance_backfill.skipped,
            error = problem, state = CASE WHEN problem IS NULL THEN x.state ELSE 'paused' END
        WHERE x.id = b.id;
END
$$;
COMMENT ON FUNCTION mill.advance_backfill IS
    'Starts runs of a locked backfill: {"id", "room", "instants" (the next ones, in order), "next_at" (the instant '
    'after these; null: there is none), "count" (of all instants), "error" (of the timing)}. An error pauses the '
    'backfill. more: whether to call it again at once';
GRANT EXECUTE ON FUNCTION mill.advance_backfill TO mill_worker;
