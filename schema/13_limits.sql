-- Limits of a task: which ones apply, and the creation of missing ones.
--
-- A default limit of a concurrency key and the limit of a group within a run are rows that somebody has to insert. A
-- transaction that enqueues does not: two of them that use the same new limits in opposite order would wait for each
-- other, and everybody else for them. It writes a number that is not above 0 in place of the id, and the task is
-- blocked. The session that grants permits creates the limit, in a short transaction.

CREATE OR REPLACE FUNCTION mill.required_limits(queue text, group_name text, run_id bigint,
    concurrency_key text, concurrency integer DEFAULT NULL) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    chain bigint[] := '{}';
    found_id bigint;
    found_max integer;
    found_group mill.groups;
BEGIN
    -- FOR KEY SHARE prevents the removal of these rows until the task is visible, and conflicts with nothing else. A
    -- limit that another session is removing counts as missing, so that nothing waits for it.
    IF concurrency_key IS NOT NULL THEN
        SELECT l.id, l.max_running INTO found_id, found_max FROM mill.limits l
            WHERE l.kind = 'key' AND l.name = concurrency_key AND l.run_id = 0 FOR KEY SHARE SKIP LOCKED;
        IF concurrency <> found_max THEN
            RAISE EXCEPTION 'concurrency key "%" allows % tasks at once, not %', concurrency_key, found_max,
                concurrency USING ERRCODE = '22023',
                HINT = format('To change it for all tasks of the key: pgmill limit set %s --max-running %s',
                    concurrency_key, concurrency);
        ELSIF concurrency < 0 THEN
            RAISE EXCEPTION 'concurrency is %; it must not be negative', concurrency USING ERRCODE = '22023';
        END IF;
        chain := chain || coalesce(found_id, -coalesce(concurrency, 1));
    ELSIF concurrency IS NOT NULL THEN
        RAISE EXCEPTION 'concurrency requires a concurrency key' USING ERRCODE = '22023';
    END IF;
    IF group_name IS NOT NULL THEN
        SELECT g.* INTO found_group FROM mill.groups g WHERE g.name = group_name FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no group "%"', group_name USING ERRCODE = '22023',
                HINT = 'Create it with pgmill group set, or SELECT mill.set_group(…).';
        END IF;
        IF found_group.requires_permit THEN
            SELECT l.id INTO found_id FROM mill.limits l WHERE l.kind = 'group'
                AND l.name = group_name AND l.run_id = coalesce(run_id, 0) FOR KEY SHARE SKIP LOCKED;
            chain := chain || coalesce(found_id, 0);
        END IF;
    END IF;
    SELECT l.id INTO found_id FROM mill.limits l
        WHERE l.kind = 'queue' AND l.name = queue AND l.run_id = 0 AND l.requires_permit FOR KEY SHARE SKIP LOCKED;
    IF FOUND THEN
        chain := chain || found_id;
    END IF;
    RETURN nullif(chain, '{}');
END
$$;
COMMENT ON FUNCTION mill.required_limits IS
    'Returns the ids of the limits that apply to a task with these properties, in the order in which the task '
    'acquires their permits; null: no limit applies. A number that is not above 0 stands for a limit that does not '
    'exist yet; for that of the concurrency key, it is the negated maximum of running tasks';

CREATE OR REPLACE FUNCTION mill.create_limits(task_ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    kinds mill.limit_kind[];
    names text[];
    runs bigint[];
    maxima integer[];
    n integer;
BEGIN
    -- Of tasks with different maxima, the first one decides.
    SELECT array_agg(w.kind), array_agg(w.name), array_agg(w.run_id), array_agg(w.max_running)
        INTO kinds, names, runs, maxima
        FROM (SELECT DISTINCT ON (u.kind, u.name, u.run_id) u.* FROM mill.tasks t CROSS JOIN LATERAL (VALUES
                ('key'::mill.limit_kind, t.concurrency_key::text, 0::bigint, CASE WHEN t.limits[1] <= 0
                    THEN -t.limits[1] ELSE 1 END),
                ('group', (SELECT g.name::text FROM mill.groups g WHERE g.name = t.group_name AND g.requires_permit),
                    coalesce(t.run_id, 0), NULL)) AS u(kind, name, run_id, max_running)
            WHERE t.id = ANY (task_ids) AND u.name IS NOT NULL
            ORDER BY u.kind, u.name, u.run_id, t.id) AS w
        WHERE NOT EXISTS (SELECT FROM mill.limits l WHERE l.kind = w.kind AND l.name = w.name AND l.run_id = w.run_id);
    IF kinds IS NULL THEN
        RETURN;
    END IF;
    BEGIN
        -- In one order, so that sessions do not wait for each other in a circle.
        INSERT INTO mill.limits (kind, name, run_id, max_running)
            SELECT w.* FROM unnest(kinds, names, runs, maxima) AS w(kind, name, run_id, max_running)
            ORDER BY w.kind, w.name, w.run_id ON CONFLICT DO NOTHING;
        RETURN;
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END;
    -- Up to 30, because many subtransactions make each snapshot of the server more expensive. In a random order, so
    -- that the next call tries others.
    PERFORM set_config('lock_timeout', '10ms', true);
    FOR n IN SELECT i FROM generate_subscripts(kinds, 1) AS i ORDER BY random() LIMIT 30 LOOP
        BEGIN
            INSERT INTO mill.limits (kind, name, run_id, max_running)
                VALUES (kinds[n], names[n], runs[n], maxima[n]) ON CONFLICT DO NOTHING;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.create_limits IS
    'Creates the limits of concurrency keys and groups that these tasks need and that do not exist. Leaves out limits '
    'that another transaction is creating or removing. In that case, it creates some of the others only';

CREATE OR REPLACE FUNCTION mill.renew_chains(missing bigint[], OUT renewed integer, OUT waited_for bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    found_ids bigint[];
    task mill.tasks;
    chain bigint[];
BEGIN
    -- A range of ids and the order leave only the index of blocked tasks.
    found_ids := ARRAY(
        (SELECT t.id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id <= 0
        ORDER BY t.blocking_limit_id, t.priority, t.id LIMIT 1000)
        UNION ALL
        SELECT head.id FROM unnest(missing) AS m (id) CROSS JOIN LATERAL (
            SELECT t.id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id = m.id
            ORDER BY t.priority, t.id LIMIT 1000) AS head);
    renewed := 0;
    PERFORM mill.create_limits(found_ids) WHERE found_ids <> '{}';
    FOR task IN SELECT t.* FROM mill.tasks t WHERE t.id = ANY (found_ids) AND t.state = 'blocked'
            AND (t.blocking_limit_id <= 0 OR t.blocking_limit_id = ANY (missing))
        ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        chain := mill.required_limits(task.queue, task.group_name, task.run_id, task.concurrency_key);
        CONTINUE WHEN 0 >= ANY (chain);
        PERFORM mill.release_permits(ARRAY[task.id], NULL);
        UPDATE mill.tasks t SET limits = chain, blocking_limit_id = chain[1], start_by = NULL,
                state = CASE WHEN chain IS NULL THEN 'pending' ELSE 'blocked' END::mill.state
            WHERE t.id = task.id;
        waited_for := array_append(waited_for, chain[1]);
        renewed := renewed + 1;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.renew_chains IS
    'Gives blocked tasks the limits that apply to them now, if they wait for a limit that does not exist (blocked -> '
    'blocked | pending): one that has to be created, up to 1000 tasks; or one of these that was removed, such as that '
    'of a run that has ended, up to 1000 tasks of each. renewed: number of tasks. waited_for: limits for which they '
    'wait now';

CREATE OR REPLACE FUNCTION mill.lock_group(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- As in mill.required_limits: prevents the removal of the group until its user is visible.
    PERFORM FROM mill.groups g WHERE g.name = lock_group.name FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no group "%"', name USING ERRCODE = '22023',
            HINT = 'Create it with pgmill group set, or SELECT mill.set_group(…).';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.lock_group IS
    'Prevents the removal of a group until the end of the transaction. Raises an error if the group does not exist';

CREATE OR REPLACE FUNCTION mill.has_group_permit(group_name text, limits bigint[]) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM mill.groups g WHERE g.name = has_group_permit.group_name AND g.requires_permit)
        OR EXISTS (SELECT FROM mill.limits l WHERE l.id = ANY (has_group_permit.limits) AND l.kind = 'group');
END
$$;
COMMENT ON FUNCTION mill.has_group_permit IS
    'Returns whether a pending task of the group has the permit that the group requires';
GRANT EXECUTE ON FUNCTION mill.has_group_permit TO mill_worker;
