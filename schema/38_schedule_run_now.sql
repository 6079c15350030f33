-- Runs of schedules that an operator starts.
--
-- For now, or for an instant in the past.

CREATE OR REPLACE FUNCTION mill.run_now(name text, force boolean DEFAULT false, options jsonb DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s mill.schedules;
    unknown text;
    blocker bigint;
    started bigint;
    instant timestamptz;
BEGIN
    options := mill.without_nulls(coalesce(options, '{}'));
    SELECT k INTO unknown FROM jsonb_object_keys(options) AS k WHERE k NOT IN ('params', 'fire_at');
    IF FOUND THEN
        RAISE EXCEPTION 'unknown option "%"', unknown USING ERRCODE = '22023',
            HINT = 'The options are params and fire_at.';
    ELSIF jsonb_typeof(coalesce(options->'params', '{}')) <> 'object' THEN
        RAISE EXCEPTION 'params must be a JSON object' USING ERRCODE = '22023';
    END IF;
    instant := (options->>'fire_at')::timestamptz;
    SELECT x.* INTO s FROM mill.schedules x WHERE x.name = run_now.name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF s.removed_at IS NOT NULL THEN
        RAISE EXCEPTION 'the declaration of schedule "%" was removed at %', s.name, date_trunc('second', s.removed_at)
            USING ERRCODE = '55000', HINT = 'Declare the schedule again.';
    ELSIF instant > now() THEN
        RAISE EXCEPTION 'instant % is in the future', instant USING ERRCODE = '22023',
            HINT = 'A run for a future instant would take the place of the regular fire.';
    END IF;
    blocker := mill.blocking_run(s);
    IF blocker IS NOT NULL AND NOT force THEN
        RAISE EXCEPTION 'run % of schedule "%" is still running', blocker, s.name USING ERRCODE = '55000',
            HINT = 'Wait for it, cancel it (pgmill run cancel), or start another run concurrently with --force.';
    END IF;
    SELECT max(r.id) INTO blocker FROM mill.runs r WHERE r.schedule_id = s.id AND r.fire_at = instant;
    IF blocker IS NOT NULL AND NOT force THEN
        RAISE EXCEPTION 'schedule "%" has a run for % already: run %', s.name, instant, blocker
            USING ERRCODE = '55000', HINT = 'Restart that run (pgmill run rerun), or start another one with --force.';
    END IF;
    SELECT r.run_id INTO started FROM mill.create_run(s.jobs, s.params || coalesce(options->'params', '{}'), s,
        coalesce(instant, clock_timestamp()), 'manual', NULL) AS r;
    PERFORM mill.log_schedule_event(s.id, 'fired', 'by ' || session_user, r.fire_at, r.reason, run_id => r.id)
        FROM mill.runs r WHERE r.id = started;
    PERFORM mill.record_audit('run_now', 'schedule ' || s.name,
        jsonb_build_object('run', started, 'force', force) || options - 'params');
    RETURN started;
END
$$;
COMMENT ON FUNCTION mill.run_now IS
    'Starts a run of a schedule immediately, without regard to its timing and without changing it. options: {"params": '
    '{"day": "2026-12-01"}, "fire_at": "2026-12-01 03:00+01"}: parameters in addition to those of the schedule, and an '
    'instant that is not in the future; without it, the run gets the current time as fire_at. Returns the id of the '
    'run; null: the schedule does not exist. Raises an error if a run is in progress that must not overlap, or if the '
    'instant has a run already, unless force is set';
GRANT EXECUTE ON FUNCTION mill.run_now TO mill_operator;
