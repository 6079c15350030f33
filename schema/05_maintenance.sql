-- Maintenance windows: periods in which the whole fleet is paused.
--
-- A window begins at once or at a planned time, and ends at a given time or when an operator resumes
-- the fleet.
--
-- Each claim reads this table, so a pause takes effect with its commit. Workers need not be told: a claim that starts
-- afterwards returns no task, and the first poll after the end of the window finds the waiting tasks.

CREATE TABLE IF NOT EXISTS mill.maintenance_windows (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    starts_at timestamptz NOT NULL,
    ends_at timestamptz NOT NULL DEFAULT 'infinity',
    reason text CONSTRAINT reason_length CHECK (length(reason) <= 1000),
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT session_user
);
COMMENT ON TABLE mill.maintenance_windows IS
    'Periods in which the fleet is paused, in force or planned. mill.pause_fleet removes windows that have ended; '
    'mill.audit keeps a record';
COMMENT ON COLUMN mill.maintenance_windows.ends_at IS 'infinity: until mill.resume_fleet is called';
-- Used by every claim. Its session disables sequential scans, and without this index each claim would seem so expensive
-- that the server compiles its plan.
CREATE INDEX IF NOT EXISTS maintenance_windows_end ON mill.maintenance_windows (ends_at);
GRANT SELECT ON mill.maintenance_windows TO mill_worker;

CREATE OR REPLACE FUNCTION mill.fleet_paused() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    -- now() is the start of the transaction, which may be before that of a pause whose commit is visible here. A pause
    -- that began at once is in force even if the clock was set back since.
    SELECT EXISTS (SELECT FROM mill.maintenance_windows w
        WHERE w.ends_at > now() AND w.starts_at <= greatest(clock_timestamp(), w.created_at))
$$;
COMMENT ON FUNCTION mill.fleet_paused IS 'Returns whether a maintenance window is in force';
GRANT EXECUTE ON FUNCTION mill.fleet_paused TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.describe_fleet_pause() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('the fleet is paused%s%s', ' until ' || date_trunc('second', nullif(w.ends_at, 'infinity')),
        ': ' || w.reason)
    FROM mill.maintenance_windows w WHERE w.ends_at > now() AND w.starts_at <= greatest(clock_timestamp(), w.created_at)
    ORDER BY w.ends_at DESC, w.id DESC LIMIT 1
$$;
COMMENT ON FUNCTION mill.describe_fleet_pause IS
    'Returns until when and why the fleet is paused, for mill.why and the console; null if the fleet is not paused';
GRANT EXECUTE ON FUNCTION mill.describe_fleet_pause TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.pause_fleet(until timestamptz DEFAULT NULL, reason text DEFAULT NULL,
    starts_at timestamptz DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    planned CONSTANT boolean := starts_at > now();
    window_start CONSTANT timestamptz := greatest(starts_at, now());
    window_end CONSTANT timestamptz := coalesce(until, 'infinity');
    window_id bigint;
BEGIN
    IF window_end <= window_start THEN
        RAISE EXCEPTION 'the pause would end at %, which is not after its start at %', window_end, window_start
            USING ERRCODE = '22023', HINT = 'Give an end in the future, or none: mill.resume_fleet() ends the pause.';
    END IF;
    DELETE FROM mill.maintenance_windows w WHERE w.ends_at <= now();
    -- A pause that begins now replaces the one in force, so that its end can be moved.
    IF planned IS NOT TRUE THEN
        DELETE FROM mill.maintenance_windows w WHERE w.starts_at <= greatest(clock_timestamp(), w.created_at);
    END IF;
    INSERT INTO mill.maintenance_windows (starts_at, ends_at, reason)
        VALUES (window_start, window_end, nullif(btrim(reason), ''))
        RETURNING id INTO window_id;
    PERFORM mill.record_audit('pause_fleet', 'fleet', jsonb_strip_nulls(jsonb_build_object('until', until,
        'reason', nullif(btrim(reason), ''), 'starts_at', CASE WHEN planned THEN starts_at END)));
    RETURN window_id;
END
$$;
COMMENT ON FUNCTION mill.pause_fleet IS
    'Pauses the fleet: no task is claimed and no schedule fires; running tasks finish. until: end of the pause; null: '
    'until mill.resume_fleet is called. starts_at: plans a pause that begins then; null: begins now and replaces the '
    'pause in force. Returns the id of the maintenance window';
GRANT EXECUTE ON FUNCTION mill.pause_fleet TO mill_operator;

CREATE OR REPLACE FUNCTION mill.resume_fleet(planned boolean DEFAULT false) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended integer;
BEGIN
    DELETE FROM mill.maintenance_windows w
        WHERE w.ends_at > now() AND (planned OR w.starts_at <= greatest(clock_timestamp(), w.created_at));
    GET DIAGNOSTICS ended = ROW_COUNT;
    IF ended > 0 THEN
        PERFORM mill.record_audit('resume_fleet', 'fleet', jsonb_build_object('windows', ended, 'planned', planned));
        PERFORM pg_notify('mill', 'sweep');
    END IF;
    RETURN ended;
END
$$;
COMMENT ON FUNCTION mill.resume_fleet IS
    'Ends the pause of the fleet. planned: also removes planned maintenance windows. Returns the number of windows '
    'that were ended or removed';
GRANT EXECUTE ON FUNCTION mill.resume_fleet TO mill_operator;
