-- Jobs: named sets of tasks with edges.
--
-- A job is a definition. Each run copies it (29_runs.sql), so a change affects only later runs. Nothing
-- is deleted: tasks and edges that a new definition omits are disabled. mill.check_job ensures that a
-- job has no cycle, and that a task uses only results of tasks that it waits for.

-- Tables ------------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.jobs (
    name mill.label PRIMARY KEY CONSTRAINT job_name_plain CHECK (name !~ '[,[:cntrl:]]' AND btrim(name) = name),
    description text,
    category text,
    frequency text,
    tags text[],
    metadata jsonb CONSTRAINT metadata_is_object CHECK (jsonb_typeof(metadata) = 'object'),
    priority mill.priority,
    expected_duration interval CONSTRAINT expected_duration_range
        CHECK (expected_duration BETWEEN '1 millisecond' AND '365 days'),
    deadline interval CONSTRAINT deadline_range
        CHECK (deadline BETWEEN '1 millisecond' AND '365 days'),
    run_timeout interval CONSTRAINT run_timeout_range
        CHECK (run_timeout BETWEEN '1 millisecond' AND '365 days'),
    of_schedule boolean NOT NULL DEFAULT false,
    version integer NOT NULL DEFAULT 1,
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT session_user,
    disabled_at timestamptz
);
COMMENT ON TABLE mill.jobs IS 'Jobs: named sets of tasks with edges';
COMMENT ON COLUMN mill.jobs.category IS 'Free-text category';
COMMENT ON COLUMN mill.jobs.frequency IS 'Intended frequency as free text. It does not schedule anything';
COMMENT ON COLUMN mill.jobs.priority IS
    'Default priority of the tasks of the job. A priority of the task overrides it';
COMMENT ON COLUMN mill.jobs.of_schedule IS
    'Whether the job was created from the statement of a schedule. Such a job changes only with its schedule';
COMMENT ON COLUMN mill.jobs.version IS
    'Version of the definition: 1 when the job is created, one more with each change';
COMMENT ON COLUMN mill.jobs.tags IS 'Tags of the runs of the job. A run also gets the tags of its schedule; null: none';
COMMENT ON COLUMN mill.jobs.metadata IS
    'Metadata of the runs of the job. For the same key, the metadata of the schedule takes precedence; null: none';
COMMENT ON COLUMN mill.jobs.disabled_at IS 'Time since which the job cannot start runs; null: enabled';
CREATE UNIQUE INDEX IF NOT EXISTS jobs_any_case ON mill.jobs (lower(name));

CREATE TABLE IF NOT EXISTS mill.job_tasks (
    job mill.label NOT NULL REFERENCES mill.jobs,
    name mill.label NOT NULL,
    description text,
    enabled boolean NOT NULL DEFAULT true,
    statement mill.statement NOT NULL,
    params jsonb,
    run_as mill.profile_name NOT NULL DEFAULT '',
    queue mill.queue_name NOT NULL DEFAULT 'default',
    priority mill.priority,
    group_name mill.label,
    concurrency_key mill.label,
    expected_duration interval CONSTRAINT expected_duration_range
        CHECK (expected_duration BETWEEN '1 millisecond' AND '365 days'),
    options mill.task_options,
    join_mode mill.join_mode NOT NULL DEFAULT 'all',
    ignore_failure boolean NOT NULL DEFAULT false,
    approval boolean NOT NULL DEFAULT false,
    approval_note text,
    disabled_at timestamptz,
    PRIMARY KEY (job, name)
);
COMMENT ON TABLE mill.job_tasks IS 'Tasks of jobs';
COMMENT ON COLUMN mill.job_tasks.params IS
    'As in mill.tasks. {"$param": "day"} refers to a parameter of the run, {"$result": "parent", "column": "n"} to a '
    'column of the first row that a parent returned';
COMMENT ON COLUMN mill.job_tasks.ignore_failure IS 'Whether a run succeeds even if this task fails';
COMMENT ON COLUMN mill.job_tasks.join_mode IS
    'all: ready when every edge is satisfied. any: ready when the first edge is satisfied';
COMMENT ON COLUMN mill.job_tasks.disabled_at IS
    'Time since which the definition of the job does not list the task, so that new runs omit it; null: it is listed';
COMMENT ON COLUMN mill.job_tasks.enabled IS
    'Whether new runs include the task. A new definition of the job that does not set it keeps it';

CREATE OR REPLACE VIEW mill.visible_job_tasks AS
    SELECT x.job, x.name, x.description, x.queue, x.priority, x.group_name, x.concurrency_key,
        x.ignore_failure, x.join_mode, x.run_as, x.disabled_at,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.statement END AS statement,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.params END AS params,
        x.enabled, x.expected_duration, x.approval, x.approval_note, (x.options).timeout, (x.options).tags,
        (x.options).metadata, x.options, (mill.effective(x.options)).*
    FROM mill.job_tasks x;
COMMENT ON VIEW mill.visible_job_tasks IS
    'mill.job_tasks for mill_viewer. Hides statements and params if settings.hide_statements is set';

CREATE TABLE IF NOT EXISTS mill.job_edges (
    job mill.label NOT NULL REFERENCES mill.jobs,
    child mill.label NOT NULL,
    parent mill.label NOT NULL,
    expected mill.expected NOT NULL DEFAULT 'succeeded',
    disabled_at timestamptz,
    PRIMARY KEY (job, child, parent)
);
COMMENT ON TABLE mill.job_edges IS 'Dependencies between tasks of a job';
COMMENT ON COLUMN mill.job_edges.disabled_at IS 'Time since which new runs omit the edge; null: enabled';

-- Definition and checks ---------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.without_nulls(document jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_object_agg(e.key, e.value), '{}') FROM jsonb_each(document) AS e WHERE e.value <> 'null'
$$;
COMMENT ON FUNCTION mill.without_nulls IS
    'Returns the object without the keys whose value is null. Unlike jsonb_strip_nulls, leaves nested values as they '
    'are';
GRANT EXECUTE ON FUNCTION mill.without_nulls TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.job_definition(job text) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.without_nulls(jsonb_build_object('name', j.name, 'description', j.description,
        'category', j.category, 'frequency', j.frequency, 'priority', j.priority, 'enabled', j.disabled_at IS NULL,
        'tags', j.tags, 'metadata', j.metadata, 'expected_duration', j.expected_duration, 'deadline', j.deadline,
        'run_timeout', j.run_timeout,
        'tasks', (SELECT coalesce(jsonb_agg(mill.without_nulls(
                coalesce(to_jsonb(t.options), '{}')
                || to_jsonb(t) - ARRAY['job', 'disabled_at', 'group_name', 'join_mode', 'options', 'explain']
                || jsonb_build_object(
                    'group', t.group_name, 'join', t.join_mode, 'run_as', nullif(t.run_as, ''),
                    'after', (SELECT jsonb_agg(jsonb_build_object('task', e.parent, 'expected', e.expected)
                            ORDER BY e.parent)
                        FROM mill.job_edges e
                        WHERE e.job = j.name AND e.child = t.name AND e.disabled_at IS NULL)))
                ORDER BY t.name), '[]')
            FROM mill.visible_job_tasks t WHERE t.job = j.name AND t.disabled_at IS NULL)))
    FROM mill.jobs j WHERE lower(j.name) = lower(job_definition.job)
$$;
COMMENT ON FUNCTION mill.job_definition IS
    'Returns the job as arguments of mill.set_job (tags and metadata belong into its argument options); null: it does '
    'not exist';
GRANT EXECUTE ON FUNCTION mill.job_definition TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.check_job_params(params jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    param jsonb;
BEGIN
    IF jsonb_typeof(params) <> 'array' THEN
        RAISE EXCEPTION 'params is a JSON %, not an array', jsonb_typeof(params) USING ERRCODE = '22023';
    END IF;
    FOR param IN SELECT p.value FROM jsonb_array_elements(params) AS p
        WHERE jsonb_typeof(p.value) = 'object' AND p.value ?| ARRAY['$param', '$result']
    LOOP
        IF jsonb_typeof(coalesce(param->'$param', param->'$result')) <> 'string'
            OR param ? '$param' AND param - '$param' <> '{}'
            OR param ? '$result' AND (param - '$result' - 'column' <> '{}'
                OR jsonb_typeof(param->'column') IS DISTINCT FROM 'string')
        THEN
            RAISE EXCEPTION 'invalid parameter reference %', param USING ERRCODE = '22023',
                HINT = 'Write {"$param": "name"} for a parameter of the run, {"$result": "task", "column": "name"} '
                    'for a value that a parent returned.';
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.check_job_params IS
    'Raises an error if params of a job''s task are not an array or contain an invalid reference';

CREATE OR REPLACE FUNCTION mill.with_max_attempts(document jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given text[] := ARRAY(SELECT k FROM unnest('{max_attempts,attempts,max_retries}'::text[]) AS k WHERE document ? k);
BEGIN
    IF cardinality(given) > 1 THEN
        RAISE EXCEPTION '"%" and "%" are the same setting: give one of them', given[1], given[2]
            USING ERRCODE = '22023';
    ELSIF given[1] = 'attempts' THEN
        RETURN document - 'attempts' || jsonb_build_object('max_attempts', document->'attempts');
    ELSIF given[1] = 'max_retries' THEN
        RETURN document - 'max_retries'
            || jsonb_build_object('max_attempts', (document->>'max_retries')::integer + 1);
    END IF;
    RETURN document;
END
$$;
COMMENT ON FUNCTION mill.with_max_attempts IS
    'Returns the document with the key max_attempts in place of its aliases: attempts (the same number) or '
    'max_retries (one less)';

CREATE OR REPLACE FUNCTION mill.set_job_task(job text, task jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    unknown text;
    parent jsonb;
    put mill.job_tasks := jsonb_populate_record(NULL::mill.job_tasks, '{"queue": "default", "ignore_failure": false,
        "join_mode": "all", "run_as": "", "approval": false}' || jsonb_build_object('job', job));
BEGIN
    task := mill.with_max_attempts(task);
    put.enabled := coalesce((SELECT t.enabled FROM mill.job_tasks t
        WHERE t.job = set_job_task.job AND t.name = task->>'name'), true);
    -- The key of every other setting is the name of its column.
    SELECT k INTO unknown FROM jsonb_object_keys(task) AS k WHERE k NOT IN ('group', 'join', 'after')
        -- The tasks of a run have the traceparent of the run, and no plan.
        AND (k <> ALL (mill.task_option_names()) OR k IN ('explain', 'traceparent'))
        AND (k IN ('job', 'disabled_at', 'group_name', 'join_mode', 'options') OR NOT EXISTS (SELECT FROM pg_attribute a
            WHERE a.attrelid = 'mill.job_tasks'::regclass AND a.attname = k AND a.attnum > 0 AND NOT a.attisdropped));
    IF FOUND THEN
        RAISE EXCEPTION 'unknown key "%"', unknown USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_durations(task - 'deadline');
    task := task || jsonb_build_object('statement', mill.check_statement(task->>'statement', NULL));
    PERFORM mill.check_job_params(task->'params'), mill.check_size('params are', task->'params') WHERE task ? 'params';
    PERFORM mill.lock_group(task->>'group') WHERE task ? 'group';
    PERFORM mill.check_profile(task->>'run_as'), mill.check_routine(task->>'run_as', task->>'statement')
        WHERE task ? 'run_as';
    put := jsonb_populate_record(put, mill.without_nulls(task - ARRAY['group', 'join', 'after']
        || jsonb_build_object('group_name', task->'group', 'join_mode', task->'join')));
    put.options := mill.read_options(task);
    IF put.approval_note IS NOT NULL AND NOT put.approval THEN
        RAISE EXCEPTION 'approval_note requires approval' USING ERRCODE = '22023';
    END IF;
    DELETE FROM mill.job_tasks t WHERE t.job = set_job_task.job AND t.name = put.name;
    INSERT INTO mill.job_tasks SELECT put.*;
    FOR parent IN SELECT p.value FROM jsonb_array_elements(coalesce(task->'after', '[]')) AS p LOOP
        IF jsonb_typeof(parent) = 'string' THEN
            parent := jsonb_build_object('task', parent);
        END IF;
        INSERT INTO mill.job_edges (job, child, parent, expected)
            VALUES (set_job_task.job, task->>'name', parent->>'task',
                coalesce((parent->>'expected')::mill.expected, 'succeeded'))
            ON CONFLICT (job, child, parent) DO UPDATE SET expected = excluded.expected, disabled_at = NULL;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.set_job_task IS 'Creates or replaces one task of a job with its edges, for mill.set_job';

CREATE OR REPLACE FUNCTION mill.find_cycle(names text[], parents integer[], children integer[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    nodes integer := coalesce(cardinality(names), 0);
    edges integer := coalesce(cardinality(parents), 0);
    waits integer[] := array_fill(0, ARRAY[greatest(nodes, 1)]);
    first_edge integer[] := array_fill(0, ARRAY[greatest(nodes, 1)]);
    next_edge integer[] := array_fill(0, ARRAY[greatest(edges, 1)]);
    ready integer[] := array_fill(0, ARRAY[greatest(nodes, 1)]);
    known integer := 0;
    taken integer := 0;
    edge integer;
    node integer;
    seen integer[] := '{}';
BEGIN
    FOR e IN 1..edges LOOP
        waits[children[e]] := waits[children[e]] + 1;
        next_edge[e] := first_edge[parents[e]];
        first_edge[parents[e]] := e;
    END LOOP;
    FOR i IN 1..nodes LOOP
        IF waits[i] = 0 THEN
            known := known + 1;
            ready[known] := i;
        END IF;
    END LOOP;
    WHILE taken < known LOOP
        taken := taken + 1;
        edge := first_edge[ready[taken]];
        WHILE edge > 0 LOOP
            node := children[edge];
            waits[node] := waits[node] - 1;
            IF waits[node] = 0 THEN
                known := known + 1;
                ready[known] := node;
            END IF;
            edge := next_edge[edge];
        END LOOP;
    END LOOP;
    IF taken = nodes THEN
        RETURN NULL;
    END IF;
    -- Every remaining node has a remaining parent, so following the parents leads into a cycle.
    FOR i IN 1..nodes LOOP
        node := i;
        EXIT WHEN waits[i] > 0;
    END LOOP;
    WHILE node <> ALL (seen) LOOP
        seen := seen || node;
        FOR e IN 1..edges LOOP
            CONTINUE WHEN children[e] <> node OR waits[parents[e]] = 0;
            node := parents[e];
            EXIT;
        END LOOP;
    END LOOP;
    RETURN (SELECT string_agg(names[s.i], ' > ' ORDER BY s.place DESC)
        FROM unnest(seen[array_position(seen, node):] || node) WITH ORDINALITY AS s(i, place));
END
$$;
COMMENT ON FUNCTION mill.find_cycle IS
    'Returns a cycle as a > b > a; null: there is none. The edge number i leads from names[parents[i]] to '
    'names[children[i]] (Kahn, Topological sorting of large networks, 1962)';

CREATE OR REPLACE FUNCTION mill.results_of_disabled_tasks(job text) RETURNS TABLE (child text, parent text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.name, p.name FROM mill.job_tasks c CROSS JOIN LATERAL jsonb_array_elements(c.params) AS param
        JOIN mill.job_tasks p ON p.job = c.job AND p.name = param.value->>'$result'
    WHERE c.job = results_of_disabled_tasks.job AND c.disabled_at IS NULL AND c.enabled
        AND p.disabled_at IS NULL AND NOT p.enabled
$$;
COMMENT ON FUNCTION mill.results_of_disabled_tasks IS
    'Returns the enabled tasks of a job that use a result of a disabled task, with that task';

CREATE OR REPLACE FUNCTION mill.check_job(job text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
DECLARE
    wrong record;
    names text[];
    round_trip text;
BEGIN
    SELECT e.child, e.parent INTO wrong FROM mill.job_edges e WHERE e.job = check_job.job
        AND e.disabled_at IS NULL AND NOT EXISTS (SELECT FROM mill.job_tasks t
            WHERE t.job = e.job AND t.name = e.parent AND t.disabled_at IS NULL) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" of job "%" waits for "%", which is not a task of this job', wrong.child, job,
            wrong.parent USING ERRCODE = '22023', TABLE = job, COLUMN = wrong.child,
            HINT = 'To make a task wait for a task of another job, use pgmill dependency add.';
    END IF;
    SELECT t.name, p.value->>'$result' AS parent INTO wrong
        FROM mill.job_tasks t CROSS JOIN LATERAL jsonb_array_elements(t.params) AS p
        WHERE t.job = check_job.job AND t.disabled_at IS NULL AND jsonb_typeof(p.value) = 'object'
            AND p.value ? '$result'
            AND NOT EXISTS (SELECT FROM mill.job_edges e WHERE e.job = t.job AND e.child = t.name
                AND e.parent = p.value->>'$result' AND e.disabled_at IS NULL)
            AND NOT EXISTS (SELECT FROM mill.dependencies d WHERE d.child = t.name
                AND d.parent = p.value->>'$result' AND d.disabled_at IS NULL) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" of job "%" uses a result of "%" but does not wait for it', wrong.name, job,
            wrong.parent USING ERRCODE = '22023', TABLE = job, COLUMN = wrong.name;
    END IF;
    SELECT m.child AS name, m.parent INTO wrong FROM mill.results_of_disabled_tasks(job) AS m LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" of job "%" uses a result of "%", which is disabled', wrong.name, job, wrong.parent
            USING ERRCODE = '22023', TABLE = job, COLUMN = wrong.name,
                HINT = 'Disable both tasks, or neither.';
    END IF;
    SELECT array_agg(t.name::text ORDER BY t.name) INTO names FROM mill.job_tasks t
        WHERE t.job = check_job.job AND t.disabled_at IS NULL;
    WITH place AS (SELECT n.name, n.i::integer FROM unnest(names) WITH ORDINALITY AS n(name, i)),
    edge AS (
        SELECT e.parent::text, e.child::text FROM mill.job_edges e
            WHERE e.job = check_job.job AND e.disabled_at IS NULL
        UNION SELECT d.parent, d.child FROM mill.dependencies d WHERE d.disabled_at IS NULL
    )
    SELECT mill.find_cycle(names, array_agg(p.i), array_agg(c.i)) INTO round_trip
        FROM edge e JOIN place p ON p.name = e.parent JOIN place c ON c.name = e.child;
    IF round_trip IS NOT NULL THEN
        RAISE EXCEPTION 'dependency cycle in job "%": %', job, round_trip
            USING ERRCODE = '22023', TABLE = job, COLUMN = split_part(round_trip, ' > ', 1);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_job IS
    'Raises an error if a job cannot run: unknown parents, results of tasks that it does not wait for, or a cycle';

CREATE OR REPLACE FUNCTION mill.set_job_tasks(job text, tasks jsonb, defaults jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names text[];
    task jsonb;
    problem text;
    hint text;
BEGIN
    SELECT array_agg(t.value->>'name') INTO names FROM jsonb_array_elements(tasks) AS t;
    UPDATE mill.job_tasks t SET disabled_at = now()
        WHERE t.job = set_job_tasks.job AND t.disabled_at IS NULL AND t.name <> ALL (coalesce(names, '{}'));
    UPDATE mill.job_edges e SET disabled_at = now() WHERE e.job = set_job_tasks.job AND e.disabled_at IS NULL;
    SELECT n INTO problem FROM unnest(names) AS n GROUP BY n HAVING count(*) > 1 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job "%" has two tasks named "%"', job, problem
            USING ERRCODE = '22023', TABLE = job, COLUMN = coalesce(problem, '');
    END IF;
    FOR task IN SELECT t.value FROM jsonb_array_elements(tasks) AS t LOOP
        BEGIN
            PERFORM mill.set_job_task(job, CASE WHEN task->'at_most_once' = 'true' THEN defaults - 'max_attempts'
                ELSE defaults END || mill.with_max_attempts(task));
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
            GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
            RAISE EXCEPTION 'task "%" of job "%": %', task->>'name', job, problem
                USING ERRCODE = '22023', TABLE = job, COLUMN = coalesce(task->>'name', ''),
                    HINT = coalesce(nullif(hint, ''), 'See docs/runs.md for the settings of a task of a job.');
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.set_job_tasks IS
    'Replaces the tasks and edges of a job, for mill.put_job. defaults: settings of tasks that do not set them';

CREATE OR REPLACE FUNCTION mill.put_job(name text, tasks jsonb, description text, category text, frequency text,
    priority mill.priority, enabled boolean, options jsonb) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    before jsonb;
    kept text;
    labels record;
    defaults jsonb := mill.with_max_attempts(coalesce(options->'task_defaults', '{}'));
BEGIN
    IF jsonb_typeof(tasks) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'tasks must be a JSON array' USING ERRCODE = '22023';
    ELSIF jsonb_typeof(defaults) <> 'object' THEN
        RAISE EXCEPTION 'task_defaults must be a JSON object' USING ERRCODE = '22023';
    ELSIF defaults ?| '{name,description,statement,params,after,at_most_once}' THEN
        RAISE EXCEPTION 'name, description, statement, params, after and at_most_once have no default'
            USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_labels(options - '{task_defaults,expected_duration,deadline,run_timeout}'::text[]);
    PERFORM mill.check_durations(options);
    SELECT l.tags, l.metadata INTO labels FROM mill.read_labels(options) AS l;
    -- A concurrent mill.set_dependency could form a cycle with the edges of this job.
    IF jsonb_array_length(tasks) > 1 THEN
        LOCK TABLE mill.dependencies IN SHARE MODE;
    END IF;
    SELECT j.name INTO kept FROM mill.jobs j WHERE lower(j.name) = lower(put_job.name) FOR UPDATE;
    IF FOUND THEN
        before := mill.job_definition(kept);
        PERFORM mill.record_job_version(kept);
        UPDATE mill.jobs j SET description = put_job.description, frequency = put_job.frequency,
                category = put_job.category, priority = put_job.priority,
                tags = labels.tags, metadata = labels.metadata,
                expected_duration = (options->>'expected_duration')::interval,
                deadline = (options->>'deadline')::interval, run_timeout = (options->>'run_timeout')::interval,
                disabled_at = CASE enabled WHEN true THEN NULL WHEN false THEN coalesce(j.disabled_at, now())
                    ELSE j.disabled_at END
            WHERE j.name = kept;
    ELSE
        INSERT INTO mill.jobs (name, description, category, frequency, priority, disabled_at, tags, metadata,
                expected_duration, deadline, run_timeout)
            VALUES (name, description, category, frequency, priority, CASE WHEN NOT enabled THEN now() END,
                labels.tags, labels.metadata, (options->>'expected_duration')::interval,
                (options->>'deadline')::interval, (options->>'run_timeout')::interval);
        kept := name;
    END IF;
    PERFORM mill.set_job_tasks(kept, tasks, defaults);
    PERFORM mill.check_job(kept);
    IF mill.job_definition(kept) IS NOT DISTINCT FROM before THEN
        RETURN false;
    END IF;
    UPDATE mill.jobs j SET changed_at = now(), changed_by = session_user,
        version = j.version + (before IS NOT NULL)::integer WHERE j.name = kept;
    PERFORM mill.record_job_version(kept);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.put_job IS
    'Creates or replaces a job, for mill.set_job and mill.put_schedule_job. Returns whether anything changed';

CREATE OR REPLACE FUNCTION mill.set_job(name text, tasks jsonb, description text DEFAULT NULL,
    frequency text DEFAULT NULL, priority mill.priority DEFAULT NULL, enabled boolean DEFAULT NULL,
    category text DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner text;
    retired boolean;
    changed boolean;
BEGIN
    SELECT s.name INTO owner FROM mill.schedules s
        WHERE s.own_job AND s.removed_at IS NULL AND lower(s.jobs[1]) = lower(set_job.name) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job "%" belongs to schedule "%"', name, owner USING ERRCODE = '55000',
            HINT = 'Change it where the schedule is declared, or use another name.';
    END IF;
    UPDATE mill.jobs j SET of_schedule = false WHERE lower(j.name) = lower(set_job.name) AND j.of_schedule;
    retired := FOUND;
    -- mill.retire_schedule_job has disabled a job that is left from a schedule.
    changed := mill.put_job(name, tasks, description, category, frequency, priority,
        CASE WHEN retired THEN coalesce(enabled, true) ELSE enabled END, options);
    IF changed THEN
        PERFORM mill.record_audit('set_job', 'job ' || j.name, jsonb_build_object('version', j.version))
            FROM mill.jobs j WHERE lower(j.name) = lower(set_job.name);
    END IF;
    RETURN changed;
END
$$;
COMMENT ON FUNCTION mill.set_job IS
    'Creates or replaces a job. Tasks that are no longer listed are disabled, not deleted. enabled null: the job '
    'stays enabled or disabled as it is. Returns whether anything changed. tasks: [{"name", "statement", "params", '
    '"queue", "priority", "group", "concurrency_key", "max_attempts", "retry_interval", "backoff", "jitter", '
    '"timeout", "mode", "at_most_once", "external", "ignore_failure", "join", "run_as", "tags", "metadata", '
    '"description", "enabled", "expected_duration", "approval", "approval_note", '
    '"after": ["parent", {"task": "parent", "expected": "failed"}]}]. '
    'options, for the runs of the job: {"tags": ["etl"], "metadata": {"owner": "bi"}, "expected_duration": "20 min", '
    '"deadline": "2 h", "run_timeout": "3 h"}, and defaults for its tasks: {"task_defaults": '
    '{"queue": "etl", "group": "loads"}}';
GRANT EXECUTE ON FUNCTION mill.set_job TO mill_operator;

CREATE OR REPLACE FUNCTION mill.enable_job(job text, enabled boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.record_job_version(job);
    UPDATE mill.jobs j SET disabled_at = CASE WHEN enabled THEN NULL ELSE coalesce(j.disabled_at, now()) END,
            version = j.version + (enabled <> (j.disabled_at IS NULL))::integer,
            changed_at = now(), changed_by = session_user
        WHERE lower(j.name) = lower(enable_job.job);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_job_version(job);
    -- The schedule that owns a job enables and disables it; only the change of the schedule is audited.
    PERFORM mill.record_audit('enable_job', 'job ' || j.name, jsonb_build_object('enabled', enabled))
        FROM mill.jobs j WHERE lower(j.name) = lower(enable_job.job) AND NOT j.of_schedule;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.enable_job IS 'Enables or disables a job. Returns false if it does not exist';
GRANT EXECUTE ON FUNCTION mill.enable_job TO mill_operator;

CREATE OR REPLACE FUNCTION mill.enable_job_task(job text, task text, enabled boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    kept text;
    changed boolean;
    wrong record;
BEGIN
    SELECT j.name INTO kept FROM mill.jobs j WHERE lower(j.name) = lower(enable_job_task.job) FOR UPDATE;
    SELECT t.enabled <> enable_job_task.enabled INTO changed FROM mill.job_tasks t
        WHERE t.job = kept AND t.name = task AND t.disabled_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_job_version(kept);
    UPDATE mill.job_tasks t SET enabled = enable_job_task.enabled WHERE t.job = kept AND t.name = task;
    SELECT m.child, m.parent INTO wrong FROM mill.results_of_disabled_tasks(kept) AS m
        WHERE task IN (m.child, m.parent) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" uses a result of "%", which would be disabled', wrong.child, wrong.parent
            USING ERRCODE = '55000', HINT = 'Disable the task that uses the result first, and enable it last.';
    END IF;
    UPDATE mill.jobs j SET version = j.version + changed::integer, changed_at = now(), changed_by = session_user
        WHERE j.name = kept;
    PERFORM mill.record_job_version(kept);
    PERFORM mill.record_audit('enable_job_task', 'job ' || kept,
        jsonb_build_object('task', task, 'enabled', enable_job_task.enabled));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.enable_job_task IS
    'Enables or disables one task of a job. New runs of the job omit a disabled task and its edges. Returns false if '
    'the job or the task does not exist';
GRANT EXECUTE ON FUNCTION mill.enable_job_task TO mill_operator;
