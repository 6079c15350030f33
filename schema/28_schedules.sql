-- Schedules: when jobs run automatically.
--
-- Tables, declaration and settings; 39_schedule_ticks.sql fires them. This file precedes 29_runs.sql,
-- because mill.create_run takes a row of mill.schedules.
--
-- The timing of a schedule is a text that only the programs parse (crate schedule), so that fire times
-- are computed in one place and stored. next_tick_at is the time at which a tick must process the
-- schedule. A tick locks due rows, and its decisions commit together with the runs that it starts. A
-- fire is a run with a schedule and a fire time.

-- Tables ------------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.schedules (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name mill.label NOT NULL UNIQUE
        CONSTRAINT schedule_name_plain CHECK (name !~ '[[:cntrl:]]' AND btrim(name) = name),
    declared_in mill.declared_in NOT NULL,
    declared_as text,
    definition jsonb NOT NULL,
    jobs text[] NOT NULL CONSTRAINT has_jobs CHECK (cardinality(jobs) > 0),
    own_job boolean NOT NULL DEFAULT false,
    params jsonb NOT NULL DEFAULT '{}' CONSTRAINT params_by_name CHECK (jsonb_typeof(params) = 'object'),
    tags text[],
    metadata jsonb CONSTRAINT metadata_is_object CHECK (jsonb_typeof(metadata) = 'object'),
    timing text NOT NULL CONSTRAINT timing_length CHECK (octet_length(timing) BETWEEN 1 AND 4000),
    mode mill.fire_mode NOT NULL GENERATED ALWAYS AS (CASE lower(btrim(split_part(timing, '(', 1)))
        WHEN 'manual' THEN 'manual'::mill.fire_mode WHEN 'trigger' THEN 'triggered'::mill.fire_mode
        ELSE 'scheduled'::mill.fire_mode END) STORED,
    trigger jsonb,
    overlap mill.overlap NOT NULL DEFAULT 'skip',
    catch_up integer NOT NULL DEFAULT 1 CONSTRAINT catch_up_range CHECK (catch_up BETWEEN 0 AND 1000),
    max_lateness interval CONSTRAINT max_lateness_range CHECK (max_lateness BETWEEN '0' AND '365 days'),
    declared_jitter interval NOT NULL DEFAULT '0'
        CONSTRAINT declared_jitter_range CHECK (declared_jitter BETWEEN '0' AND '1 day'),
    expected_duration interval CONSTRAINT expected_duration_range
        CHECK (expected_duration BETWEEN '1 millisecond' AND '365 days'),
    deadline interval CONSTRAINT deadline_range
        CHECK (deadline BETWEEN '1 millisecond' AND '365 days'),
    run_timeout interval CONSTRAINT run_timeout_range
        CHECK (run_timeout BETWEEN '1 millisecond' AND '365 days'),
    enabled boolean NOT NULL DEFAULT true,
    max_attempts mill.attempt_limit,
    retry_interval mill.retry_interval,
    jitter interval CONSTRAINT jitter_range CHECK (jitter BETWEEN '0' AND '1 day'),
    removed_at timestamptz,
    version integer NOT NULL DEFAULT 1,
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT session_user,
    new_timing text,
    new_timing_at timestamptz,
    new_timing_error text,
    timing_finished_at timestamptz,
    planned_from timestamptz NOT NULL DEFAULT now(),
    next_tick_at timestamptz,
    next_fire_at timestamptz,
    queued_fire_at timestamptz,
    queued_later timestamptz[],
    trigger_checked_at timestamptz,
    trigger_result text,
    error text,
    last_fire_at timestamptz,
    last_finished_at timestamptz,
    last_state mill.run_state,
    last_success_at timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.schedules IS 'Schedules: when to start runs of jobs automatically';
COMMENT ON COLUMN mill.schedules.declared_as IS
    'For a schedule that is declared in a comment: the procedure that has the comment';
COMMENT ON COLUMN mill.schedules.definition IS 'Declaration as passed to mill.put_schedule';
COMMENT ON COLUMN mill.schedules.own_job IS 'Whether the job was created for the schedule from a single statement';
COMMENT ON COLUMN mill.schedules.params IS
    'Parameters of the runs of the schedule. {"$param": …} can also refer to fire_at, schedule and reason';
COMMENT ON COLUMN mill.schedules.tags IS
    'Tags of the runs of the schedule, in addition to those of its jobs; null: none';
COMMENT ON COLUMN mill.schedules.metadata IS
    'Metadata of the runs of the schedule, which takes precedence over that of its jobs; null: none';
COMMENT ON COLUMN mill.schedules.timing IS
    'manual, a timing such as daily(03:15), or trigger(…), see docs/schedules.md';
COMMENT ON COLUMN mill.schedules.new_timing IS
    'Timing that mill.set_schedule has set and that no worker has accepted. Until a worker accepts it, timing stays in '
    'force; null: none';
COMMENT ON COLUMN mill.schedules.new_timing_at IS 'Time from which new_timing applies once a worker has accepted it';
COMMENT ON COLUMN mill.schedules.new_timing_error IS
    'Why a worker has rejected new_timing; null: no worker has checked it, or there is none';
COMMENT ON COLUMN mill.schedules.catch_up IS
    'Number of missed fires that are started late. The newest ones are started; older ones are recorded as missed';
COMMENT ON COLUMN mill.schedules.max_lateness IS
    'Maximum delay of a late start. A missed fire that is older is not started but recorded as missed; null: no limit';
COMMENT ON COLUMN mill.schedules.enabled IS
    'Whether the schedule fires. Operators set enabled, max_attempts, retry_interval and jitter; a declaration does '
    'not change these columns';
COMMENT ON COLUMN mill.schedules.max_attempts IS
    'Overrides max_attempts of the tasks of the schedule; null: as declared';
COMMENT ON COLUMN mill.schedules.retry_interval IS
    'Overrides retry_interval of the tasks of the schedule; null: as declared';
COMMENT ON COLUMN mill.schedules.jitter IS 'Maximum random delay of a fire; null: declared_jitter';
COMMENT ON COLUMN mill.schedules.removed_at IS
    'Time at which the declaration was removed. Since then the schedule does not fire; mill.prune_schedule_log '
    'deletes it later; null: the schedule is declared';
COMMENT ON COLUMN mill.schedules.timing_finished_at IS
    'Time at which a tick disabled the schedule, because its timing has no further fire. A new timing enables it '
    'again; null: this has not happened, or an operator has enabled or disabled the schedule since';
COMMENT ON COLUMN mill.schedules.planned_from IS 'Time from which the search for the next fire begins';
COMMENT ON COLUMN mill.schedules.next_tick_at IS 'Time at which a tick must process the schedule; null: never';
COMMENT ON COLUMN mill.schedules.next_fire_at IS
    'Next fire according to the timing; null: not computed yet, or there is no further fire';
COMMENT ON COLUMN mill.schedules.queued_fire_at IS
    'Fire that waits for a run of the schedule to finish (overlap queue, or one of several fires caught up)';
COMMENT ON COLUMN mill.schedules.queued_later IS 'Fires that wait behind queued_fire_at, in order; null: none';
COMMENT ON COLUMN mill.schedules.trigger IS 'Trigger part of timing, as parsed by a worker';
COMMENT ON COLUMN mill.schedules.trigger_checked_at IS 'Time of the last evaluation of the trigger';
COMMENT ON COLUMN mill.schedules.trigger_result IS
    'Result of the last evaluation of the trigger, or the error of its probe';
COMMENT ON COLUMN mill.schedules.error IS
    'Error in the timing, error of the last evaluation of the trigger, or why the last fire started no run';
-- Used by mill.lock_due_schedules. The cost of a tick depends on the due schedules, not on all
-- schedules.
CREATE INDEX IF NOT EXISTS schedules_tick ON mill.schedules (next_tick_at) WHERE next_tick_at IS NOT NULL;
GRANT SELECT ON mill.schedules TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.schedule_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id bigint NOT NULL,
    logged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    event mill.schedule_event NOT NULL,
    fire_at timestamptz,
    reason text,
    message text,
    rows bigint,
    count bigint,
    run_id bigint,
    outcome mill.run_state,
    duration interval
);
COMMENT ON TABLE mill.schedule_log IS
    'One row per schedule event (fired, skipped, missed, completed, error, …). Rows are never updated. Workers delete '
    'rows older than settings.schedule_log_retention';
COMMENT ON COLUMN mill.schedule_log.reason IS
    'Reason of the fire: schedule, manual, or the trigger condition that was met';
COMMENT ON COLUMN mill.schedule_log.rows IS 'For a fire of a trigger: number of pending rows';
COMMENT ON COLUMN mill.schedule_log.count IS 'For missed: number of missed fires';
COMMENT ON COLUMN mill.schedule_log.run_id IS
    'Run that was fired or finished; for a skipped fire, the run that was in progress';
COMMENT ON COLUMN mill.schedule_log.duration IS 'For completed: duration of the run';
-- The log of one schedule, with keyset pagination.
CREATE INDEX IF NOT EXISTS schedule_log_schedule ON mill.schedule_log (schedule_id, id);

CREATE OR REPLACE VIEW mill.visible_schedule_log AS
    SELECT x.id, x.schedule_id, x.logged_at, x.event, x.fire_at, x.reason, x.rows, x.count, x.run_id,
        x.outcome, x.duration,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.message END AS message,
        (SELECT s.name FROM mill.schedules s WHERE s.id = x.schedule_id) AS schedule
    FROM mill.schedule_log x;
COMMENT ON VIEW mill.visible_schedule_log IS
    'mill.schedule_log for mill_viewer, with the names of the schedules. Hides messages if settings.hide_statements is '
    'set';

CREATE TABLE IF NOT EXISTS mill.schedule_declaration_errors (
    declared_as text NOT NULL,
    place text NOT NULL,
    message text NOT NULL,
    hint text,
    found_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (declared_as, place, message)
);
COMMENT ON TABLE mill.schedule_declaration_errors IS
    'Errors in the comments of procedures, found by the last schedule sync';
COMMENT ON COLUMN mill.schedule_declaration_errors.place IS 'line:column within the comment';
GRANT SELECT, INSERT, DELETE ON mill.schedule_declaration_errors TO mill_worker, mill_operator;

-- Declaration -------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.timing_without_probe(timing text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN timing ~* '^[^a-z]*trigger[^a-z_]*([(]|$)' THEN 'trigger(…)' ELSE timing END
$$;
COMMENT ON FUNCTION mill.timing_without_probe IS
    'Returns a timing for readers who may not see statements: that of a trigger contains SQL';
GRANT EXECUTE ON FUNCTION mill.timing_without_probe TO mill_viewer, mill_worker;

CREATE OR REPLACE FUNCTION mill.is_active(schedule mill.schedules) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT schedule.enabled AND schedule.removed_at IS NULL
$$;
COMMENT ON FUNCTION mill.is_active IS 'Returns whether the schedule may fire automatically';
GRANT EXECUTE ON FUNCTION mill.is_active TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.put_schedule_job(job text, definition jsonb, enabled boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    other text;
BEGIN
    SELECT j.name INTO other FROM mill.jobs j
        WHERE lower(j.name) = lower(job) AND (j.name <> job OR NOT j.of_schedule);
    IF FOUND THEN
        RAISE EXCEPTION 'job "%" already exists', other USING ERRCODE = '22023',
            HINT = 'Give that job instead of a statement, or give the schedule another name.';
    END IF;
    PERFORM mill.put_job(job, jsonb_build_array(coalesce(definition->'task', '{}')
            || jsonb_build_object('name', job, 'statement', definition->'statement')),
        definition->>'description', definition->>'category', NULL, NULL, enabled, NULL);
    UPDATE mill.jobs j SET of_schedule = true WHERE j.name = job AND NOT j.of_schedule;
END
$$;
COMMENT ON FUNCTION mill.put_schedule_job IS 'Creates or replaces a job with a single statement, for mill.put_schedule';

CREATE OR REPLACE FUNCTION mill.is_job_of_schedule(jobs text[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM mill.schedules s
        WHERE s.own_job AND s.jobs = is_job_of_schedule.jobs AND s.removed_at IS NULL)
$$;
COMMENT ON FUNCTION mill.is_job_of_schedule IS
    'Returns whether this job was created for a schedule that is still declared';

CREATE OR REPLACE FUNCTION mill.retire_schedule_job(jobs text[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.enable_job(retire_schedule_job.jobs[1], false) WHERE NOT mill.is_job_of_schedule(jobs)
$$;
COMMENT ON FUNCTION mill.retire_schedule_job IS
    'Disables a job that was created for schedules if no schedule uses it any more';

CREATE OR REPLACE FUNCTION mill.check_schedule(definition jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unknown text;
    problem text := CASE
        WHEN coalesce(octet_length(definition->>'timing'), 0) NOT BETWEEN 1 AND 4000
            THEN 'timing must have from 1 to 4000 bytes'
        WHEN (definition->>'catch_up')::integer NOT BETWEEN 0 AND 1000 THEN 'catch_up must be from 0 to 1000'
        WHEN (definition->>'max_lateness')::interval NOT BETWEEN '0' AND '365 days'
            THEN 'max_lateness must be from 0 to 365 days'
        WHEN (definition->>'jitter')::interval NOT BETWEEN '0' AND '1 day' THEN 'jitter must be from 0 to 1 day' END;
BEGIN
    SELECT k INTO unknown FROM jsonb_object_keys(definition) AS k WHERE k <> ALL (ARRAY['name', 'timing',
        'statement', 'jobs', 'params', 'task', 'overlap', 'catch_up', 'max_lateness', 'jitter', 'description',
        'category', 'enabled', 'tags', 'metadata', 'expected_duration', 'deadline', 'run_timeout']);
    IF FOUND THEN
        RAISE EXCEPTION 'unknown key "%" in a schedule', unknown USING ERRCODE = '22023';
    ELSIF num_nonnulls(definition->>'statement', definition->'jobs') <> 1 THEN
        RAISE EXCEPTION 'schedule "%" needs either a statement or jobs', definition->>'name' USING ERRCODE = '22023';
    ELSIF definition ? 'jobs' AND definition ?| ARRAY['task', 'description', 'category']
        OR definition ? 'statement' AND definition ? 'params'
    THEN
        RAISE EXCEPTION 'schedule "%" combines settings of a statement and of jobs', definition->>'name'
            USING ERRCODE = '22023',
            HINT = 'task, description and category require a statement, whose params belong in task; '
                'params requires jobs.';
    ELSIF problem IS NOT NULL THEN
        RAISE EXCEPTION 'schedule "%": %', definition->>'name', problem USING ERRCODE = '22023';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_schedule IS
    'Raises an error if a definition has an unknown key, keys that exclude each other, or a value that is out of range';

CREATE OR REPLACE FUNCTION mill.put_jobs_of_schedule(definition jsonb, declared_as text) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted text[];
    unknown text;
BEGIN
    IF definition ? 'statement' THEN
        wanted := ARRAY[coalesce(declared_as, definition->>'name')];
        -- mill.retire_schedule_job has disabled a job that is left from schedules which were removed. A job of another
        -- schedule stays as operators have set it.
        PERFORM mill.put_schedule_job(wanted[1], definition,
            CASE WHEN NOT mill.is_job_of_schedule(wanted) THEN true END);
        RETURN wanted;
    END IF;
    SELECT array_agg(j.value ORDER BY j.place) INTO wanted
        FROM jsonb_array_elements_text(definition->'jobs') WITH ORDINALITY AS j(value, place);
    IF wanted IS NULL THEN
        RAISE EXCEPTION 'schedule "%" has an empty list of jobs', definition->>'name' USING ERRCODE = '22023';
    END IF;
    SELECT w INTO unknown FROM unnest(wanted) AS w WHERE NOT EXISTS (
        SELECT FROM mill.jobs j WHERE lower(j.name) = lower(btrim(w))) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'there is no job "%"', unknown USING ERRCODE = '22023',
            HINT = 'pgmill job list shows all jobs.';
    END IF;
    RETURN wanted;
END
$$;
COMMENT ON FUNCTION mill.put_jobs_of_schedule IS
    'For mill.put_schedule: returns the jobs of a definition. Creates or replaces the job of a single statement. '
    'Raises an error if another job does not exist';

CREATE OR REPLACE FUNCTION mill.read_schedule(definition jsonb) RETURNS mill.schedules
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    declared mill.schedules;
BEGIN
    declared.name := definition->>'name';
    declared.definition := definition - 'enabled';
    declared.own_job := definition ? 'statement';
    declared.params := coalesce(definition->'params', '{}');
    declared.timing := definition->>'timing';
    declared.overlap := coalesce((definition->>'overlap')::mill.overlap, 'skip');
    declared.catch_up := coalesce((definition->>'catch_up')::integer, 1);
    declared.max_lateness := definition->>'max_lateness';
    declared.declared_jitter := coalesce((definition->>'jitter')::interval, '0');
    declared.enabled := definition->>'enabled';
    SELECT l.tags, l.metadata INTO declared.tags, declared.metadata FROM mill.read_labels(definition) AS l;
    declared.expected_duration := definition->>'expected_duration';
    declared.deadline := definition->>'deadline';
    declared.run_timeout := definition->>'run_timeout';
    RETURN declared;
END
$$;
COMMENT ON FUNCTION mill.read_schedule IS
    'Returns the schedule that a definition describes, without its jobs and where it is declared. enabled: null if the '
    'definition does not say it';

CREATE OR REPLACE FUNCTION mill.write_schedule(declared mill.schedules, kept mill.schedules) RETURNS mill.schedules
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept_timing text;
    begins_again boolean;
    put mill.schedules;
BEGIN
    -- The timing of an existing schedule stays in force until a program has parsed the new one. There is
    -- nothing to keep if no worker could use the old one either.
    IF kept.removed_at IS NULL AND kept.timing <> declared.timing
        AND (kept.error IS NULL OR kept.mode = 'manual' OR num_nonnulls(kept.next_fire_at, kept.trigger) > 0)
    THEN
        kept_timing := kept.timing;
    END IF;
    -- The end of its timing has disabled the schedule, not an operator.
    begins_again := declared.enabled IS NULL AND kept.timing_finished_at IS NOT NULL
        AND (kept.removed_at IS NOT NULL OR kept.timing <> declared.timing);
    INSERT INTO mill.schedules AS s (name, declared_in, declared_as, definition, jobs, own_job, params, timing,
        overlap, catch_up, max_lateness, declared_jitter, enabled, next_tick_at, tags, metadata, expected_duration,
        deadline, run_timeout)
    VALUES (declared.name, declared.declared_in, declared.declared_as, declared.definition, declared.jobs,
        declared.own_job, declared.params, declared.timing, declared.overlap, declared.catch_up,
        declared.max_lateness, declared.declared_jitter, coalesce(declared.enabled, true),
        CASE WHEN coalesce(declared.enabled, true) THEN now() END, declared.tags, declared.metadata,
        declared.expected_duration, declared.deadline, declared.run_timeout)
    ON CONFLICT (name) DO UPDATE SET declared_in = excluded.declared_in, declared_as = excluded.declared_as,
        definition = excluded.definition, jobs = excluded.jobs, own_job = excluded.own_job,
        params = excluded.params, timing = coalesce(kept_timing, excluded.timing),
        new_timing = CASE WHEN kept_timing IS NOT NULL THEN excluded.timing END,
        new_timing_at = CASE WHEN kept_timing IS NOT NULL THEN now() END, new_timing_error = NULL,
        next_tick_at = CASE WHEN kept_timing IS NOT NULL AND mill.is_active(s) THEN now() ELSE s.next_tick_at END,
        overlap = excluded.overlap, catch_up = excluded.catch_up, max_lateness = excluded.max_lateness,
        declared_jitter = excluded.declared_jitter, removed_at = NULL,
        tags = excluded.tags, metadata = excluded.metadata,
        expected_duration = excluded.expected_duration, deadline = excluded.deadline,
        run_timeout = excluded.run_timeout,
        enabled = coalesce(declared.enabled, s.enabled OR begins_again),
        timing_finished_at = CASE WHEN declared.enabled IS NULL AND NOT begins_again THEN s.timing_finished_at END
    RETURNING s.* INTO put;
    RETURN put;
END
$$;
COMMENT ON FUNCTION mill.write_schedule IS
    'Creates or replaces a schedule, for mill.put_schedule, and returns it. kept: its locked row so far; null: there '
    'is none. What operators set, and the timing in force, stay';

CREATE OR REPLACE FUNCTION mill.put_schedule(definition jsonb, declared_in mill.declared_in,
    declared_as text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    declared mill.schedules;
    kept mill.schedules;
    put mill.schedules;
BEGIN
    IF definition ? 'task' THEN
        definition := definition || jsonb_build_object('task', mill.with_max_attempts(definition->'task'));
    END IF;
    PERFORM mill.check_size('definition of the schedule is', definition), mill.check_schedule(definition),
        mill.check_durations(definition);
    declared := mill.read_schedule(definition);
    declared.declared_in := declared_in;
    declared.declared_as := declared_as;
    -- A declaration that changes nothing waits for no lock: the sync declares all schedules of comments in one
    -- transaction, and another session may have locked one of them.
    IF EXISTS (SELECT FROM mill.schedules s WHERE s.name = declared.name AND s.removed_at IS NULL
        AND s.declared_in = declared_in AND s.definition = declared.definition
        AND coalesce(declared.enabled, s.enabled) = s.enabled)
    THEN
        RETURN 'unchanged';
    END IF;
    SELECT s.* INTO kept FROM mill.schedules s WHERE s.name = declared.name FOR NO KEY UPDATE;
    IF kept.removed_at IS NULL AND kept.declared_in <> declared_in THEN
        RAISE EXCEPTION 'schedule "%" is declared in %', kept.name, CASE kept.declared_in
                WHEN 'comment' THEN 'the comment of ' || kept.declared_as WHEN 'file' THEN 'a file'
                ELSE 'a call of mill.set_schedule' END
            USING ERRCODE = '55000', HINT = 'Change it there, or remove it there first.';
    END IF;
    IF kept.removed_at IS NULL AND kept.definition = declared.definition
        AND coalesce(declared.enabled, kept.enabled) = kept.enabled
    THEN
        RETURN 'unchanged';
    END IF;
    declared.jobs := mill.put_jobs_of_schedule(definition, declared_as);
    put := mill.write_schedule(declared, kept);
    -- If the timing changed, or the schedule became active or inactive, the next fire is computed from
    -- now.
    IF kept.id IS NOT NULL AND (put.timing <> kept.timing OR mill.is_active(put) <> mill.is_active(kept)) THEN
        PERFORM mill.replan_schedule(put.id);
    END IF;
    -- All viewers read the audit, so it has no statements.
    PERFORM mill.record_change('put_schedule', 'schedule ' || put.name,
        CASE WHEN kept.id IS NOT NULL THEN to_jsonb(kept) || '{"result": "changed"}'
            || jsonb_build_object('timing', mill.timing_without_probe(kept.timing)) END,
        jsonb_build_object('declared_in', declared_in,
            'timing', mill.timing_without_probe(coalesce(put.new_timing, put.timing)),
            'enabled', put.enabled, 'result', CASE WHEN kept.id IS NULL THEN 'new' ELSE 'changed' END));
    IF kept.id IS NULL THEN
        RETURN 'new';
    ELSIF kept.own_job AND kept.jobs <> declared.jobs THEN
        PERFORM mill.retire_schedule_job(kept.jobs);
    END IF;
    UPDATE mill.schedules s SET version = s.version + 1, changed_at = now(), changed_by = session_user
        WHERE s.id = put.id;
    RETURN 'changed';
END
$$;
COMMENT ON FUNCTION mill.put_schedule IS
    'Creates or replaces a schedule. definition: name, timing, statement or jobs, task (settings of the statement, as '
    'in mill.set_job), params, overlap, catch_up, max_lateness, jitter, description, category, enabled, tags, '
    'metadata, expected_duration, deadline, run_timeout. Returns new, changed or unchanged. A new timing of '
    'an existing schedule takes effect when mill.accept_timing is called';
GRANT EXECUTE ON FUNCTION mill.put_schedule TO mill_worker, mill_operator;

CREATE OR REPLACE FUNCTION mill.log_dropped_fires(schedule mill.schedules, until timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one_fire_at timestamptz;
BEGIN
    -- Only workers can compute the instants after the first. A schedule without a next tick was not active.
    IF schedule.next_fire_at <= until AND schedule.next_tick_at IS NOT NULL THEN
        PERFORM mill.log_schedule_event(schedule.id, 'missed', format('every fire from %s to %s, because the schedule '
            'was changed before a worker ticked', schedule.next_fire_at, until), schedule.next_fire_at);
    END IF;
    FOREACH one_fire_at IN ARRAY array_remove(schedule.queued_fire_at || schedule.queued_later, NULL) LOOP
        PERFORM mill.log_schedule_event(schedule.id, 'skipped', 'the schedule was changed while the fire waited',
            one_fire_at);
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.log_dropped_fires IS
    'Logs the fires that a change of a locked schedule drops: the fires up to this time that no tick has processed, '
    'and those that wait for the end of a run';

CREATE OR REPLACE FUNCTION mill.replan_schedule(schedule_id bigint) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.log_dropped_fires(s, now()) FROM mill.schedules s WHERE s.id = replan_schedule.schedule_id;
    UPDATE mill.schedules s SET planned_from = now(), next_fire_at = NULL, queued_fire_at = NULL,
            queued_later = NULL, error = NULL,
            -- The dry run of a disabled schedule evaluates its trigger.
            trigger = CASE WHEN NOT mill.is_active(s) THEN s.trigger END,
            next_tick_at = CASE WHEN mill.is_active(s) THEN now() END,
            new_timing_at = CASE WHEN s.new_timing IS NOT NULL THEN now() END, new_timing_error = NULL
        WHERE s.id = replan_schedule.schedule_id
$$;
COMMENT ON FUNCTION mill.replan_schedule IS
    'Makes the next tick compute the next fire of the schedule, counted from now';

CREATE OR REPLACE FUNCTION mill.accept_timing(name text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.log_dropped_fires(l.schedule, (l.schedule).new_timing_at) FROM (SELECT s AS schedule
        FROM mill.schedules s WHERE s.name = accept_timing.name AND s.new_timing IS NOT NULL FOR NO KEY UPDATE) AS l;
    -- A probe of the old trigger may be in progress. Its result has the old version, so it is ignored.
    UPDATE mill.schedules s SET timing = s.new_timing, new_timing = NULL, new_timing_at = NULL, new_timing_error = NULL,
            planned_from = s.new_timing_at, next_fire_at = NULL, queued_fire_at = NULL, queued_later = NULL,
            trigger = NULL, error = NULL, version = s.version + (s.trigger IS NOT NULL)::integer
        WHERE s.name = accept_timing.name AND s.new_timing IS NOT NULL
$$;
COMMENT ON FUNCTION mill.accept_timing IS
    'Makes the new timing of a schedule the timing in force, for a program that has parsed it. The next tick computes '
    'the next fire, counted from the time at which the timing was set';
GRANT EXECUTE ON FUNCTION mill.accept_timing TO mill_worker, mill_operator;

CREATE OR REPLACE FUNCTION mill.lock_schedule(name text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT FROM mill.schedules s WHERE s.name = lock_schedule.name FOR NO KEY UPDATE
$$;
COMMENT ON FUNCTION mill.lock_schedule IS
    'Locks a schedule until the end of the transaction, for a program that then reads the definition and puts it back '
    'changed: no other session changes the schedule in between';
GRANT EXECUTE ON FUNCTION mill.lock_schedule TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_schedule(name text, timing text, statement text DEFAULT NULL,
    jobs text[] DEFAULT NULL, params jsonb DEFAULT NULL, task jsonb DEFAULT NULL, overlap mill.overlap DEFAULT 'skip',
    catch_up integer DEFAULT 1, max_lateness interval DEFAULT NULL, jitter interval DEFAULT NULL,
    description text DEFAULT NULL, category text DEFAULT NULL, enabled boolean DEFAULT NULL,
    options jsonb DEFAULT NULL) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.check_labels(options - '{expected_duration,deadline,run_timeout}'::text[]);
    SELECT mill.put_schedule(mill.without_nulls(jsonb_build_object('name', name, 'timing', timing,
        'statement', statement, 'jobs', to_jsonb(jobs), 'params', params, 'task', task,
        'overlap', overlap, 'catch_up', catch_up,
        'max_lateness', max_lateness, 'jitter', jitter, 'description', description, 'category', category,
        'enabled', enabled)) || coalesce(options, '{}'), 'call')
$$;
COMMENT ON FUNCTION mill.set_schedule IS
    'Creates or replaces a schedule. Returns new, changed or unchanged. timing: manual, a cadence such as '
    'daily(03:15), or trigger(…). The schedule runs either statement or jobs. task: settings of the statement, '
    '{"params", "queue", "priority", "group", "max_attempts", "timeout", "mode", …}. params: parameters of the runs '
    'of jobs. options: {"tags", "metadata", "expected_duration", "deadline", "run_timeout"}. enabled null: the '
    'schedule stays enabled or disabled as it is. Only a worker can parse a timing: until '
    'one has accepted the new timing of an existing schedule, the old timing stays in force';
GRANT EXECUTE ON FUNCTION mill.set_schedule TO mill_operator;

CREATE OR REPLACE FUNCTION mill.remove_schedules(names text[]) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone mill.schedules;
BEGIN
    PERFORM mill.log_dropped_fires(l.schedule, now()) FROM (SELECT s AS schedule FROM mill.schedules s
        WHERE s.name = ANY (names) AND s.removed_at IS NULL ORDER BY s.id FOR NO KEY UPDATE) AS l;
    FOR gone IN
        UPDATE mill.schedules s SET removed_at = now(), next_tick_at = NULL, next_fire_at = NULL, queued_fire_at = NULL,
                queued_later = NULL, changed_at = now(), changed_by = session_user, version = s.version + 1
            WHERE s.name = ANY (names) AND s.removed_at IS NULL RETURNING s.*
    LOOP
        PERFORM mill.retire_schedule_job(gone.jobs) WHERE gone.own_job;
        PERFORM mill.record_audit('remove_schedules', 'schedule ' || gone.name);
        RETURN NEXT gone.name;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.remove_schedules IS
    'Removes the declarations of schedules, so that the schedules no longer fire. mill.prune_schedule_log deletes them '
    'later. Returns the names of the schedules that existed';
GRANT EXECUTE ON FUNCTION mill.remove_schedules TO mill_worker, mill_operator;

-- Settings of operators ---------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.enable_schedule(name text, enabled boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    found_schedule mill.schedules;
BEGIN
    SELECT s.* INTO found_schedule FROM mill.schedules s WHERE s.name = enable_schedule.name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF enabled AND found_schedule.removed_at IS NOT NULL THEN
        RAISE EXCEPTION 'the declaration of schedule "%" was removed at %', name,
            date_trunc('second', found_schedule.removed_at)
            USING ERRCODE = '55000', HINT = 'Declare the schedule again.';
    ELSIF found_schedule.enabled <> enabled OR found_schedule.timing_finished_at IS NOT NULL THEN
        UPDATE mill.schedules s SET enabled = enable_schedule.enabled, timing_finished_at = NULL,
            changed_at = now(), changed_by = session_user, version = s.version + 1 WHERE s.id = found_schedule.id;
        PERFORM mill.replan_schedule(found_schedule.id);
        PERFORM mill.record_audit('enable_schedule', 'schedule ' || name, jsonb_build_object('enabled', enabled));
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.enable_schedule IS
    'Enables a schedule, so that it fires from now on, or disables it. Returns false if the schedule does not exist';
GRANT EXECUTE ON FUNCTION mill.enable_schedule TO mill_operator;

CREATE OR REPLACE FUNCTION mill.override_schedule(name text, settings jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unknown text;
    before jsonb;
BEGIN
    settings := mill.with_max_attempts(settings);
    SELECT k INTO unknown FROM jsonb_object_keys(settings) AS k
        WHERE k <> ALL (ARRAY['max_attempts', 'retry_interval', 'jitter']);
    IF FOUND THEN
        RAISE EXCEPTION 'cannot override "%"; expected max_attempts, retry_interval or jitter', unknown
            USING ERRCODE = '22023';
    END IF;
    SELECT to_jsonb(s) INTO before FROM mill.schedules s WHERE s.name = override_schedule.name FOR NO KEY UPDATE;
    UPDATE mill.schedules s SET changed_at = now(), changed_by = session_user, version = s.version + 1,
            max_attempts = CASE WHEN settings ? 'max_attempts' THEN (settings->>'max_attempts')::integer
                ELSE s.max_attempts END,
            retry_interval = CASE WHEN settings ? 'retry_interval' THEN (settings->>'retry_interval')::interval
                ELSE s.retry_interval END,
            jitter = CASE WHEN settings ? 'jitter' THEN (settings->>'jitter')::interval ELSE s.jitter END
        WHERE s.name = override_schedule.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_change('override_schedule', 'schedule ' || name, before, (
        SELECT jsonb_object_agg(k, to_jsonb(s)->k) FROM mill.schedules s, jsonb_object_keys(settings) AS k
        WHERE s.name = override_schedule.name));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.override_schedule IS
    'Overrides settings of a schedule, whatever its declaration says: {"max_attempts", "retry_interval", "jitter"}; '
    'null: as declared. Returns false if the schedule does not exist';
GRANT EXECUTE ON FUNCTION mill.override_schedule TO mill_operator;
