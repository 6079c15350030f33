-- Capacity: priorities, queues, profiles, groups and limits.
--
-- The settings here, and the functions that change them, decide which task runs next, as which login,
-- and how many tasks run at once.
--
-- The limits of queues and concurrency keys are stored in mill.limits. The limit of a group is stored in mill.groups
-- and counts the tasks of each run separately, so mill.limits has one row for each run that uses the group. The view
-- mill.effective_limits combines both tables. A function that changes a limit also applies the change to existing
-- tasks, with mill.enforce_limits (14_permits.sql).

-- Priorities --------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.priorities (
    priority mill.priority PRIMARY KEY,
    -- NaN and infinity compare greater than all numbers, so the upper bound excludes them.
    weight double precision NOT NULL CHECK (weight >= 0 AND weight <= 1000000)
);
COMMENT ON TABLE mill.priorities IS
    'Weight of each priority. While all priorities have work, claims are distributed in proportion to the weights. A '
    'weight is a probability, not a rank: a lower priority is claimed less often, but is not held back';
COMMENT ON COLUMN mill.priorities.weight IS
    'Weight relative to the other priorities; 0: claimed only when no other priority has work';
INSERT INTO mill.priorities (priority, weight)
    VALUES ('low', 5), ('normal', 10), ('high', 15), ('critical', 30), ('reserved', 40)
    ON CONFLICT DO NOTHING;
GRANT SELECT ON mill.priorities TO mill_worker;

CREATE OR REPLACE FUNCTION mill.set_weights(low double precision DEFAULT NULL,
    normal double precision DEFAULT NULL, high double precision DEFAULT NULL,
    critical double precision DEFAULT NULL, reserved double precision DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before jsonb;
BEGIN
    PERFORM FROM mill.priorities p ORDER BY p.priority FOR UPDATE;
    before := (SELECT jsonb_object_agg(p.priority, p.weight) FROM mill.priorities p);
    UPDATE mill.priorities p SET weight = coalesce(w.weight, p.weight)
        FROM (VALUES ('low'::mill.priority, low), ('normal', normal), ('high', high),
            ('critical', critical), ('reserved', reserved)) AS w (priority, weight)
        WHERE p.priority = w.priority;
    IF NOT EXISTS (SELECT FROM mill.priorities p WHERE p.weight > 0) THEN
        RAISE EXCEPTION 'all weights are zero' USING ERRCODE = '22023',
            HINT = 'At least one weight must be greater than zero.';
    END IF;
    PERFORM mill.record_change('set_weights', 'priorities', before, jsonb_strip_nulls(jsonb_build_object('low', low,
        'normal', normal, 'high', high, 'critical', critical, 'reserved', reserved)));
END
$$;
COMMENT ON FUNCTION mill.set_weights IS
    'Changes the given weights: 0 to 1000000, not all of them 0. Workers apply the change within two seconds';
GRANT EXECUTE ON FUNCTION mill.set_weights TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_reserved_capacity(capacity mill.reserved_capacity) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE mill.settings SET reserved_capacity = capacity
$$;
COMMENT ON FUNCTION mill.set_reserved_capacity IS
    'Sets the share of the fleet''s readers that run only tasks of priority reserved. Workers apply the change with '
    'their next heartbeat';
GRANT EXECUTE ON FUNCTION mill.set_reserved_capacity TO mill_operator;

-- Queues ------------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.queues (
    name mill.queue_name PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false,
    held_back text,
    shared_commit interval CHECK (shared_commit BETWEEN '1 millisecond' AND '100 milliseconds'),
    store_params boolean NOT NULL DEFAULT true,
    store_output boolean NOT NULL DEFAULT true,
    max_replication_lag interval CHECK (max_replication_lag BETWEEN '5 seconds' AND '1 hour'),
    max_snapshot_age interval CHECK (max_snapshot_age >= '1 second'),
    max_active_sessions integer CHECK (max_active_sessions >= 0),
    changed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE mill.queues IS 'Settings of queues. A queue that has no row has the default settings';
COMMENT ON COLUMN mill.queues.paused IS 'Whether claims from the queue are stopped. Running tasks continue';
COMMENT ON COLUMN mill.queues.shared_commit IS
    'Time budget within which a reader runs short tasks of this queue in one shared transaction; null: each task '
    'commits alone';
COMMENT ON COLUMN mill.queues.store_params IS
    'Default of the option store_params of the tasks of the queue: whether params of finished tasks are stored';
COMMENT ON COLUMN mill.queues.store_output IS
    'Default of the option store_output: whether notices, results and plans of finished tasks are stored';
COMMENT ON COLUMN mill.queues.max_replication_lag IS
    'Workers claim only while no connected standby is further behind; null: no such condition';
COMMENT ON COLUMN mill.queues.max_snapshot_age IS
    'Workers claim only while no transaction has held its snapshot for longer; null: no such condition';
COMMENT ON COLUMN mill.queues.max_active_sessions IS
    'Workers claim only while at most this many sessions of the server are active; null: no such condition';
COMMENT ON COLUMN mill.queues.held_back IS
    'Which condition does not hold, so that workers claim nothing; null: every condition holds';
GRANT SELECT ON mill.queues TO mill_worker;

-- Profiles ----------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.profiles (
    name mill.profile_name PRIMARY KEY CHECK (name <> ''),
    description text,
    allowed text[] NOT NULL DEFAULT '{}',
    routines text[],
    key uuid NOT NULL UNIQUE DEFAULT gen_random_uuid()
);
COMMENT ON TABLE mill.profiles IS
    'Profiles: additional logins that tasks can run as. The connection settings of a profile are in the '
    'configuration of workers; this table has the roles that may use the profile';
COMMENT ON COLUMN mill.profiles.allowed IS 'Roles whose members may enqueue tasks that run as this profile';
COMMENT ON COLUMN mill.profiles.routines IS
    'Routines (schema.name) of which a task of the profile has to call one; null: a task may have any statement';
COMMENT ON COLUMN mill.profiles.key IS
    'Random secret of the keys by which a caller of mill.submit proves that it may use the profile. mill.submit cannot '
    'check this itself: a SECURITY DEFINER function cannot determine its caller';

-- A key names a role and proves that this role has been allowed to use the profile, in a session of the same login.
CREATE OR REPLACE FUNCTION mill.profile_key(secret uuid, role oid) RETURNS uuid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT encode(oidsend(profile_key.role) || substr(uuid_send(secret), 1, 2)
        || substr(sha256(uuid_send(secret) || oidsend(profile_key.role) || oidsend(r.oid)), 1, 10), 'hex')::uuid
    FROM pg_roles r WHERE r.rolname = session_user
$$;
COMMENT ON FUNCTION mill.profile_key IS
    'Returns the key of a profile for a role: the number of the role, two bytes by which mill.name_of_profile finds '
    'the secret, and a hash of the secret, the role and the login';
GRANT EXECUTE ON FUNCTION mill.profile_key TO mill_producer, mill_viewer;

-- current_user is the role that executes the query: in a SECURITY DEFINER function, the owner of the function.
CREATE OR REPLACE VIEW mill.my_profiles WITH (security_barrier) AS
SELECT p.name, p.description, mill.profile_key(p.key, u.oid) AS key
FROM mill.profiles p JOIN pg_roles u ON u.rolname = current_user
WHERE mill.may_act_as(u.oid, p.allowed);
COMMENT ON VIEW mill.my_profiles IS 'Profiles that the current user may use for tasks';
GRANT SELECT ON mill.my_profiles TO mill_producer;

CREATE OR REPLACE FUNCTION mill.profile(name text) RETURNS uuid
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_key uuid;
BEGIN
    SELECT p.key INTO found_key FROM mill.my_profiles p WHERE p.name::text = profile.name;
    IF found_key IS NULL THEN
        RAISE EXCEPTION 'role "%" may not use profile "%"', current_user, name USING ERRCODE = '42501',
            HINT = pg_catalog.format('A member of mill_owner can allow it: SELECT mill.set_profile(%L, allowed => '
                'ARRAY[%L])', name, current_user);
    END IF;
    RETURN found_key;
END
$$;
COMMENT ON FUNCTION mill.profile IS
    'Returns a key of a profile, for mill.submit and mill.submit_many in sessions of the same login, as long as the '
    'current user may use the profile. Raises an error if it may not';
GRANT EXECUTE ON FUNCTION mill.profile TO mill_producer;

CREATE OR REPLACE FUNCTION mill.name_of_profile(profile uuid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given CONSTANT bytea := uuid_send(profile);
    found_name text;
BEGIN
    -- The role in the key has to be allowed now: it may have lost the right since the key was made.
    SELECT p.name INTO found_name FROM mill.profiles p
        JOIN pg_roles u ON u.oid = ('x' || encode(substr(given, 1, 4), 'hex'))::bit(32)::bigint::oid
        WHERE substr(uuid_send(p.key), 1, 2) = substr(given, 5, 2) AND mill.profile_key(p.key, u.oid) = profile
            AND mill.may_act_as(u.oid, p.allowed);
    IF found_name IS NULL THEN
        RAISE EXCEPTION 'unknown profile key' USING ERRCODE = '42501', HINT = 'Pass profile => mill.profile(''name'').';
    END IF;
    RETURN found_name;
END
$$;
COMMENT ON FUNCTION mill.name_of_profile IS
    'Returns the name of the profile with this key, for mill.submit. Raises an error if the key is unknown or of '
    'another login, or if its role may no longer use the profile';

-- The functions that declare jobs are SECURITY DEFINER, so current_user is their owner here. The check
-- applies to the session user instead, or to the role assumed with SET ROLE.
CREATE OR REPLACE FUNCTION mill.check_profile(name text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller text := coalesce(nullif(current_setting('role'), 'none'), session_user);
BEGIN
    IF NOT EXISTS (SELECT FROM mill.profiles p JOIN pg_roles u ON u.rolname = caller
        WHERE p.name = check_profile.name AND mill.may_act_as(u.oid, p.allowed))
    THEN
        RAISE EXCEPTION 'role "%" may not use profile "%"', caller, name USING ERRCODE = '42501',
            HINT = format('A member of mill_owner can allow it: SELECT mill.set_profile(%L, allowed => ARRAY[%L])',
                name, caller);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_profile IS
    'Raises an error if the caller may not use this profile, for mill.set_job_task';

CREATE OR REPLACE FUNCTION mill.set_profile(name text, allowed text[] DEFAULT NULL,
    description text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    missing text;
    before jsonb;
BEGIN
    SELECT a.role INTO missing FROM unnest(set_profile.allowed) AS a(role)
        WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = a.role);
    IF FOUND THEN
        RAISE EXCEPTION 'there is no role "%"', missing USING ERRCODE = '22023';
    END IF;
    SELECT to_jsonb(p) INTO before FROM mill.profiles p WHERE p.name = set_profile.name FOR UPDATE;
    INSERT INTO mill.profiles AS p (name, allowed, description)
        VALUES (set_profile.name, coalesce(set_profile.allowed, '{}'), set_profile.description)
        ON CONFLICT (name) DO UPDATE SET allowed = coalesce(set_profile.allowed, p.allowed),
            description = coalesce(set_profile.description, p.description), key = gen_random_uuid();
    PERFORM mill.record_change('set_profile', 'profile ' || set_profile.name, before, jsonb_strip_nulls(
        jsonb_build_object('allowed', set_profile.allowed, 'description', set_profile.description)));
END
$$;
COMMENT ON FUNCTION mill.set_profile IS
    'Creates or changes a profile; allowed: roles whose members may use it. Null arguments leave settings unchanged. '
    'For mill_owner only';

CREATE OR REPLACE FUNCTION mill.use_of_profile(name text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT u.what FROM (
        SELECT 'task ' || t.id AS what FROM mill.tasks t WHERE t.run_as = use_of_profile.name
        UNION ALL
        SELECT format('task "%s" of job "%s"', t.name, t.job) FROM mill.job_tasks t
            WHERE t.run_as = use_of_profile.name AND t.disabled_at IS NULL
        UNION ALL
        SELECT format('task "%s" of run %s', t.name, r.id) FROM mill.runs r JOIN mill.run_tasks t ON t.run_id = r.id
            WHERE r.state = 'running' AND t.run_as = use_of_profile.name
        UNION ALL
        SELECT format('subscription "%s"', s.name) FROM mill.subscriptions s
            WHERE s.run_as = use_of_profile.name) AS u LIMIT 1);
END
$$;
COMMENT ON FUNCTION mill.use_of_profile IS
    'Returns a live task, a task of a job or of a run in progress, or a subscription that uses the profile, or null';

CREATE OR REPLACE FUNCTION mill.drop_profile(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    used CONSTANT text := mill.use_of_profile(name);
BEGIN
    IF used IS NOT NULL THEN
        RAISE EXCEPTION 'profile "%" is used by %', name, used USING ERRCODE = '55000',
            HINT = 'Wait for its tasks and runs or cancel them; change or disable its jobs; change its subscriptions.';
    END IF;
    DELETE FROM mill.profiles p WHERE p.name = drop_profile.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_audit('drop_profile', 'profile ' || name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.drop_profile IS
    'Removes a profile that no live task, job, run in progress or subscription uses. Returns whether it existed. For '
    'mill_owner only';

-- Groups and limits -------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.groups (
    name mill.label PRIMARY KEY,
    description text,
    priority mill.priority,
    max_running integer CONSTRAINT group_max_running_range CHECK (max_running >= 0),
    opens time,
    closes time,
    zone text,
    requires_permit boolean NOT NULL GENERATED ALWAYS AS (max_running IS NOT NULL OR opens IS NOT NULL) STORED,
    CONSTRAINT period_whole CHECK (num_nonnulls(opens, closes, zone) IN (0, 3)),
    CONSTRAINT period_has_length CHECK (opens <> closes)
);
COMMENT ON TABLE mill.groups IS
    'Groups of tasks that share a default priority, a concurrency limit within each run, and an active period';
COMMENT ON COLUMN mill.groups.priority IS
    'Default priority of the tasks of the group. A priority of the task overrides it';
COMMENT ON COLUMN mill.groups.max_running IS
    'Maximum number of tasks of the group that run at once in one run. null: no limit. 0: no task starts, running '
    'tasks finish. All tasks outside of runs count together, as one run';
COMMENT ON COLUMN mill.groups.requires_permit IS 'Whether tasks of the group need a permit';
COMMENT ON COLUMN mill.groups.opens IS
    'Time of day, in zone, from which tasks may start. If closes is earlier, the period extends past midnight';
GRANT SELECT ON mill.groups TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.limits (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind mill.limit_kind NOT NULL,
    name mill.label NOT NULL,
    run_id bigint NOT NULL DEFAULT 0,
    max_running integer CONSTRAINT max_running_range CHECK (max_running >= 0),
    rate_starts integer CONSTRAINT rate_starts_range CHECK (rate_starts BETWEEN 1 AND 1000000),
    rate_period interval
        CONSTRAINT rate_period_range CHECK (rate_period BETWEEN '1 second' AND '365 days'),
    window_starts integer,
    window_length interval,
    requires_permit boolean NOT NULL
        GENERATED ALWAYS AS (max_running IS NOT NULL OR rate_starts IS NOT NULL) STORED,
    explicit boolean NOT NULL DEFAULT false,
    CONSTRAINT rate_whole
        CHECK (num_nonnulls(rate_starts, rate_period, window_starts, window_length) IN (0, 4)),
    UNIQUE (kind, name, run_id)
);
COMMENT ON TABLE mill.limits IS
    'Limits on tasks of a queue, of a concurrency key, or of a group within one run. A task with a limit is blocked '
    'until it has a permit';
COMMENT ON COLUMN mill.limits.run_id IS 'Groups only: the run; 0 for tasks outside any run';
COMMENT ON COLUMN mill.limits.max_running IS
    'Keys and queues: maximum number of running tasks. null: no limit. 0: no task starts. For groups see mill.groups';
COMMENT ON COLUMN mill.limits.requires_permit IS
    'Keys and queues: whether max_running or a rate is set, so that new tasks need a permit';
COMMENT ON COLUMN mill.limits.explicit IS 'Whether mill.set_max_running has set it, so that mill.prune keeps it';
COMMENT ON COLUMN mill.limits.rate_starts IS 'Maximum number of starts in any rate_period';
COMMENT ON COLUMN mill.limits.window_starts IS
    'Maximum number of starts in any window_length. This expresses the same rate as rate_starts per rate_period, for '
    'the shortest window that enforces the rate exactly';
GRANT SELECT ON mill.limits TO mill_worker;

CREATE OR REPLACE FUNCTION mill.resolve_local_time(at_local timestamp, zone text) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        -- The usual case: the clock does not change at this time or in the three hours before it.
        WHEN i.later AT TIME ZONE zone = at_local
            AND (i.later - interval '3 hours') AT TIME ZONE zone = at_local - interval '3 hours'
        THEN i.later
        ELSE (SELECT min(m) FROM generate_series(i.later - interval '3 hours', i.later, interval '1 minute') AS m
            WHERE m AT TIME ZONE zone >= at_local)
    END
    FROM (SELECT at_local AT TIME ZONE zone AS later) AS i
$$;
COMMENT ON FUNCTION mill.resolve_local_time IS
    'Returns the first instant at which the clocks of a zone show this time or a later one. If the time falls into '
    'the gap when clocks are put forward, this is the end of the gap. If the time occurs twice because clocks are put '
    'back, this is the first occurrence';
GRANT EXECUTE ON FUNCTION mill.resolve_local_time TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.active_period(opens time, closes time, zone text, at timestamptz,
    OUT open boolean, OUT until timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(bool_or(at >= p.begins AND at < p.ends), opens IS NULL),
        coalesce(max(p.ends) FILTER (WHERE at >= p.begins AND at < p.ends),
            min(p.begins) FILTER (WHERE p.begins > at))
    -- On a day on which clocks skip the whole period, it begins and ends at the same instant.
    FROM (SELECT mill.resolve_local_time(d.day + opens, zone) AS begins, mill.resolve_local_time(
            d.day + closes + CASE WHEN closes < opens THEN interval '1 day' ELSE '0' END, zone) AS ends
        FROM generate_series(-1, 2) AS n
            CROSS JOIN LATERAL (SELECT (at AT TIME ZONE zone)::date + n AS day) AS d
        WHERE opens IS NOT NULL) AS p
    WHERE p.begins < p.ends
$$;
COMMENT ON FUNCTION mill.active_period IS
    'Returns whether a daily period is open at an instant, and the time of the next change. Without a period, open is '
    'true and until is null';
GRANT EXECUTE ON FUNCTION mill.active_period TO mill_worker, mill_viewer;

CREATE OR REPLACE VIEW mill.effective_limits AS
    SELECT l.id, l.kind, l.name, l.run_id,
        terms.max_running, coalesce(terms.max_running = 0, false) AS paused,
        l.rate_starts, l.rate_period, l.window_starts, l.window_length, g.opens, g.closes, g.zone
    FROM mill.limits l LEFT JOIN mill.groups g ON l.kind = 'group' AND g.name = l.name
        CROSS JOIN LATERAL (SELECT CASE WHEN l.kind = 'group' THEN g.max_running ELSE l.max_running END)
            AS terms (max_running);
COMMENT ON VIEW mill.effective_limits IS 'Each limit with its current values. max_running null: no limit; 0: paused';

CREATE OR REPLACE FUNCTION mill.set_max_running(kind mill.limit_kind, name text, max_running integer)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before jsonb;
    after jsonb := jsonb_build_object('max_running', max_running);
    changed bigint;
BEGIN
    IF set_max_running.kind = 'group' THEN
        SELECT to_jsonb(g) INTO before FROM mill.groups g WHERE g.name = set_max_running.name FOR NO KEY UPDATE;
        UPDATE mill.groups g SET max_running = set_max_running.max_running WHERE g.name = set_max_running.name;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no group "%"', name USING ERRCODE = '22023';
        END IF;
        PERFORM mill.record_change('set_max_running', 'group ' || name, before, after);
        PERFORM mill.enforce_limits(ARRAY(SELECT l.id FROM mill.limits l
            WHERE l.kind = 'group' AND l.name = set_max_running.name), NULL, name);
        RETURN;
    END IF;
    SELECT to_jsonb(l) INTO before FROM mill.limits l
        WHERE (l.kind, l.name, l.run_id) = (set_max_running.kind, set_max_running.name, 0) FOR NO KEY UPDATE;
    INSERT INTO mill.limits AS l (kind, name, max_running, explicit)
        VALUES (set_max_running.kind, set_max_running.name, set_max_running.max_running, true)
        ON CONFLICT ON CONSTRAINT limits_kind_name_run_id_key
            DO UPDATE SET max_running = excluded.max_running, explicit = true
        RETURNING l.id INTO changed;
    PERFORM mill.record_change('set_max_running', kind || ' ' || name, coalesce(before, '{}'), after);
    PERFORM mill.enforce_limits(ARRAY[changed], CASE kind WHEN 'queue' THEN name END, NULL);
END
$$;
COMMENT ON FUNCTION mill.set_max_running IS
    'Sets the maximum number of running tasks of a queue, of a concurrency key or of each run of a group. null: no '
    'limit. 0: no task starts. Tasks that are already running finish';
GRANT EXECUTE ON FUNCTION mill.set_max_running TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_rate(kind mill.limit_kind, name text, starts integer, period interval)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    seconds numeric := extract(epoch FROM period);
    divisor integer;
    before jsonb;
    changed bigint;
BEGIN
    IF set_rate.kind = 'group' THEN
        RAISE EXCEPTION 'a group cannot have a rate' USING ERRCODE = '22023',
            HINT = 'Set the rate on a queue or a concurrency key.';
    ELSIF num_nonnulls(starts, period) = 1 THEN
        RAISE EXCEPTION 'a rate requires both a number of starts and a period' USING ERRCODE = '22023';
    END IF;
    -- A window that divides the period evenly enforces the rate as exactly as the period, and spreads the starts more
    -- evenly. This query picks the shortest such window that lasts at least one second and allows at least one start.
    SELECT max(d) INTO divisor FROM generate_series(1, least(starts, 1000000)) AS d
        WHERE starts % d = 0 AND d <= greatest(1, floor(starts / seconds));
    SELECT jsonb_build_object('starts', l.rate_starts, 'period', l.rate_period) INTO before FROM mill.limits l
        WHERE (l.kind, l.name, l.run_id) = (set_rate.kind, set_rate.name, 0) FOR NO KEY UPDATE;
    -- A key without a row allows one task at once, so its new row does, too.
    INSERT INTO mill.limits AS l (kind, name, max_running, rate_starts, rate_period, window_starts, window_length)
        VALUES (set_rate.kind, set_rate.name, CASE set_rate.kind WHEN 'key' THEN 1 END, starts, period, divisor,
            period * divisor / starts)
        ON CONFLICT ON CONSTRAINT limits_kind_name_run_id_key DO UPDATE
            SET rate_starts = excluded.rate_starts, rate_period = excluded.rate_period,
                window_starts = excluded.window_starts, window_length = excluded.window_length
        RETURNING l.id INTO changed;
    PERFORM mill.record_change('set_rate', kind || ' ' || name, coalesce(before, '{}'),
        jsonb_build_object('starts', starts, 'period', period));
    PERFORM mill.enforce_limits(ARRAY[changed], CASE kind WHEN 'queue' THEN name END, NULL);
END
$$;
COMMENT ON FUNCTION mill.set_rate IS
    'Sets a rate: the maximum number of tasks of a queue or a concurrency key that start within any time span of this '
    'length. null, null: no rate';
GRANT EXECUTE ON FUNCTION mill.set_rate TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_group(name text, description text DEFAULT NULL,
    priority mill.priority DEFAULT NULL, max_running integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    before jsonb;
BEGIN
    SELECT to_jsonb(g) INTO before FROM mill.groups g WHERE g.name = set_group.name FOR NO KEY UPDATE;
    INSERT INTO mill.groups AS g (name, description, priority, max_running)
        VALUES (name, description, priority, max_running)
        ON CONFLICT ON CONSTRAINT groups_pkey DO UPDATE
            SET description = coalesce(excluded.description, g.description),
                priority = coalesce(excluded.priority, g.priority),
                max_running = coalesce(set_group.max_running, g.max_running);
    PERFORM mill.record_change('set_group', 'group ' || name, before, jsonb_strip_nulls(jsonb_build_object(
        'description', description, 'priority', priority, 'max_running', max_running)));
    PERFORM mill.enforce_limits(ARRAY(SELECT l.id FROM mill.limits l
        WHERE l.kind = 'group' AND l.name = set_group.name), NULL, name);
END
$$;
COMMENT ON FUNCTION mill.set_group IS
    'Creates a group, or changes the given settings of an existing one. mill.set_max_running(''group'', name, null) '
    'removes its limit';
GRANT EXECUTE ON FUNCTION mill.set_group TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_active_period(group_name text, opens time, closes time,
    zone text DEFAULT 'UTC') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before jsonb;
BEGIN
    IF opens = closes THEN
        RAISE EXCEPTION 'the active period is empty' USING ERRCODE = '22023',
            HINT = 'Pass null, null to let tasks of the group start at any time.';
    END IF;
    PERFORM now() AT TIME ZONE set_active_period.zone;
    SELECT to_jsonb(g) INTO before FROM mill.groups g WHERE g.name = set_active_period.group_name FOR NO KEY UPDATE;
    UPDATE mill.groups g SET opens = set_active_period.opens, closes = set_active_period.closes,
        zone = CASE WHEN set_active_period.opens IS NOT NULL THEN set_active_period.zone END
        WHERE g.name = set_active_period.group_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no group "%"', group_name USING ERRCODE = '22023';
    END IF;
    PERFORM mill.record_change('set_active_period', 'group ' || group_name, before,
        jsonb_build_object('opens', opens, 'closes', closes, 'zone', CASE WHEN opens IS NOT NULL THEN zone END));
    PERFORM mill.enforce_limits(ARRAY(SELECT l.id FROM mill.limits l
        WHERE l.kind = 'group' AND l.name = set_active_period.group_name), NULL, group_name);
END
$$;
COMMENT ON FUNCTION mill.set_active_period IS
    'Sets the times of day, in a zone, between which tasks of a group may start. If closes is earlier than opens, the '
    'period extends past midnight. null, null: at any time';
GRANT EXECUTE ON FUNCTION mill.set_active_period TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_default_group(name text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE mill.settings SET default_group = name
$$;
COMMENT ON FUNCTION mill.set_default_group IS
    'Sets the group of new tasks, and of tasks of new runs, that are given no group; null: none';
GRANT EXECUTE ON FUNCTION mill.set_default_group TO mill_operator;

CREATE OR REPLACE FUNCTION mill.require_read_committed(action text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION '% requires the isolation level READ COMMITTED, not %', action,
            upper(current_setting('transaction_isolation')) USING ERRCODE = '25001',
            HINT = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.require_read_committed IS
    'For functions that lock a row and then look for tasks that use it: raises an error in isolation levels whose '
    'snapshot can be older than the lock, and would not show these tasks';

CREATE OR REPLACE FUNCTION mill.drop_group(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.require_read_committed('mill.drop_group');
    PERFORM FROM mill.groups g WHERE g.name = drop_group.name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF EXISTS (SELECT FROM mill.settings s WHERE s.default_group = drop_group.name) THEN
        RAISE EXCEPTION 'group "%" is the default group', name USING ERRCODE = '55000',
            HINT = 'Set another one first, or none with pgmill group default off.';
    ELSIF EXISTS (SELECT FROM mill.tasks t WHERE t.group_name = drop_group.name) THEN
        RAISE EXCEPTION 'group "%" has live tasks', name USING ERRCODE = '23503',
            HINT = 'Cancel them or wait until they finish; --max-running 0 prevents them from starting.';
    END IF;
    IF EXISTS (SELECT FROM mill.job_tasks t WHERE t.group_name = drop_group.name AND t.disabled_at IS NULL)
        OR EXISTS (SELECT FROM mill.runs r JOIN mill.run_tasks t ON t.run_id = r.id
            WHERE r.state = 'running' AND t.group_name = drop_group.name)
    THEN
        RAISE EXCEPTION 'group "%" is used by tasks of jobs or runs', name USING ERRCODE = '23503',
            HINT = 'Remove the group from the jobs, and wait until the runs finish.';
    END IF;
    DELETE FROM mill.limits l WHERE l.kind = 'group' AND l.name = drop_group.name;
    DELETE FROM mill.groups g WHERE g.name = drop_group.name;
    PERFORM mill.record_audit('drop_group', 'group ' || name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.drop_group IS
    'Removes a group that has no live tasks. Returns false if it does not exist. Requires READ COMMITTED';
GRANT EXECUTE ON FUNCTION mill.drop_group TO mill_operator;
