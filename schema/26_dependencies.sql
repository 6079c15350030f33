-- Dependencies: edges that hold in every run that contains both tasks.
--
-- They hold regardless of jobs. Dependencies and the edges of jobs together form the lineage of the
-- data that the tasks load.
--
-- The lineage may contain a cycle between jobs that never run together. A run that contains a cycle does
-- not start.

CREATE TABLE IF NOT EXISTS mill.dependencies (
    child mill.label NOT NULL,
    parent mill.label NOT NULL,
    expected mill.expected NOT NULL DEFAULT 'succeeded',
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT session_user,
    disabled_at timestamptz,
    PRIMARY KEY (child, parent)
);
COMMENT ON TABLE mill.dependencies IS
    'Dependencies between tasks in every run that contains both. They also form the lineage of the data that the '
    'tasks load';
COMMENT ON COLUMN mill.dependencies.disabled_at IS 'Time since which new runs ignore the dependency; null: enabled';
CREATE INDEX IF NOT EXISTS dependencies_parent ON mill.dependencies (parent);

CREATE OR REPLACE FUNCTION mill.check_jobs_with(child text, parent text) RETURNS void
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.check_job(j.name) FROM mill.jobs j WHERE j.disabled_at IS NULL AND 2 = (
        SELECT count(*) FROM mill.job_tasks t WHERE t.job = j.name AND t.disabled_at IS NULL
            AND t.name IN (check_jobs_with.child, check_jobs_with.parent))
$$;
COMMENT ON FUNCTION mill.check_jobs_with IS
    'Raises an error if an enabled job that contains both tasks cannot run, for changes of their dependency';

CREATE OR REPLACE FUNCTION mill.set_dependency(child text, parent text,
    expected mill.expected DEFAULT 'succeeded') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names text[];
    round_trip text;
BEGIN
    -- Serializes changes: two concurrent changes could form a cycle that neither change forms alone.
    LOCK TABLE mill.dependencies IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO mill.dependencies AS d (child, parent, expected)
        VALUES (set_dependency.child, set_dependency.parent, set_dependency.expected)
        ON CONFLICT ON CONSTRAINT dependencies_pkey DO UPDATE SET expected = excluded.expected,
            disabled_at = NULL, changed_at = now(), changed_by = session_user
            WHERE d.disabled_at IS NOT NULL OR d.expected <> excluded.expected;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT array_agg(DISTINCT n.name) INTO names FROM mill.dependencies d
        CROSS JOIN LATERAL (VALUES (d.child::text), (d.parent)) AS n (name) WHERE d.disabled_at IS NULL;
    WITH place AS (SELECT n.name, n.i::integer FROM unnest(names) WITH ORDINALITY AS n(name, i))
    SELECT mill.find_cycle(names, array_agg(p.i), array_agg(c.i)) INTO round_trip
        FROM mill.dependencies d JOIN place p ON p.name = d.parent JOIN place c ON c.name = d.child
        WHERE d.disabled_at IS NULL;
    IF round_trip IS NOT NULL THEN
        RAISE EXCEPTION 'dependency cycle: %', round_trip USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_jobs_with(child, parent);
    PERFORM mill.record_audit('set_dependency', format('dependency %s > %s', parent, child),
        jsonb_build_object('expected', expected));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.set_dependency IS
    'Makes the child wait for the parent in every run that contains both. Raises an error if a job that contains both '
    'could then not run. Returns whether anything changed';
GRANT EXECUTE ON FUNCTION mill.set_dependency TO mill_operator;

CREATE OR REPLACE FUNCTION mill.drop_dependency(child text, parent text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.dependencies d SET disabled_at = now(), changed_at = now(), changed_by = session_user
        WHERE d.child = drop_dependency.child AND d.parent = drop_dependency.parent AND d.disabled_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A job may use a result of the parent in the child.
    PERFORM mill.check_jobs_with(child, parent);
    PERFORM mill.record_audit('drop_dependency', format('dependency %s > %s', parent, child));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.drop_dependency IS
    'Disables a dependency. Raises an error if a job could then not run, because the child uses a result of the '
    'parent. Returns false if the dependency does not exist';
GRANT EXECUTE ON FUNCTION mill.drop_dependency TO mill_operator;

CREATE OR REPLACE VIEW mill.lineage AS
    SELECT d.child, d.parent, d.expected, NULL::text AS job FROM mill.dependencies d WHERE d.disabled_at IS NULL
    UNION ALL
    SELECT e.child, e.parent, e.expected, e.job FROM mill.job_edges e JOIN mill.jobs j ON j.name = e.job
    WHERE e.disabled_at IS NULL AND j.disabled_at IS NULL;
COMMENT ON VIEW mill.lineage IS
    'Dependencies between tasks: those that hold in every run (job null), and the edges of each job';

CREATE OR REPLACE FUNCTION mill.reachable_tasks(origin text, upwards boolean)
RETURNS TABLE (task text, distance integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
DECLARE
    names text[];
    froms integer[];
    tos integer[];
    first_edge integer[];
    next_edge integer[];
    distances integer[];
    found integer[];
    known integer := 0;
    taken integer := 0;
    edge integer;
BEGIN
    SELECT array_agg(DISTINCT n.name) INTO names
        FROM mill.lineage l CROSS JOIN LATERAL (VALUES (l.child::text), (l.parent)) AS n (name);
    IF names IS NULL OR origin <> ALL (names) THEN
        RETURN;
    END IF;
    WITH place AS (SELECT n.name, n.i::integer FROM unnest(names) WITH ORDINALITY AS n(name, i)),
    edges AS (SELECT DISTINCT l.child::text, l.parent::text FROM mill.lineage l)
    SELECT array_agg(CASE WHEN upwards THEN c.i ELSE p.i END), array_agg(CASE WHEN upwards THEN p.i ELSE c.i END)
        INTO froms, tos
        FROM edges e JOIN place c ON c.name = e.child JOIN place p ON p.name = e.parent;
    first_edge := array_fill(0, ARRAY[cardinality(names)]);
    next_edge := array_fill(0, ARRAY[cardinality(froms)]);
    distances := array_fill(-1, ARRAY[cardinality(names)]);
    found := array_fill(0, ARRAY[cardinality(names)]);
    FOR e IN 1..cardinality(froms) LOOP
        next_edge[e] := first_edge[froms[e]];
        first_edge[froms[e]] := e;
    END LOOP;
    -- Breadth-first search. The lineage may contain cycles between jobs that never run together.
    known := 1;
    found[1] := array_position(names, origin);
    distances[found[1]] := 0;
    WHILE taken < known LOOP
        taken := taken + 1;
        edge := first_edge[found[taken]];
        WHILE edge > 0 LOOP
            IF distances[tos[edge]] < 0 THEN
                distances[tos[edge]] := distances[found[taken]] + 1;
                known := known + 1;
                found[known] := tos[edge];
            END IF;
            edge := next_edge[edge];
        END LOOP;
    END LOOP;
    RETURN QUERY SELECT names[f.i], distances[f.i] FROM unnest(found[2:known]) AS f(i) ORDER BY 2, 1;
END
$$;
COMMENT ON FUNCTION mill.reachable_tasks IS
    'Returns all direct and indirect parents of a task, or all children, with their distance (1: direct)';

CREATE OR REPLACE FUNCTION mill.upstream(name text) RETURNS TABLE (task text, distance integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.task, r.distance FROM mill.reachable_tasks(name, true) AS r
$$;
COMMENT ON FUNCTION mill.upstream IS
    'Returns the tasks that this task waits for, directly or indirectly, with their distance (1: direct)';
GRANT EXECUTE ON FUNCTION mill.upstream TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.downstream(name text) RETURNS TABLE (task text, distance integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.task, r.distance FROM mill.reachable_tasks(name, false) AS r
$$;
COMMENT ON FUNCTION mill.downstream IS
    'Returns the tasks that wait for this task, directly or indirectly, with their distance (1: direct)';
GRANT EXECUTE ON FUNCTION mill.downstream TO mill_viewer;
