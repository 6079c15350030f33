-- Tasks: live tasks and their deduplication keys.
--
-- A finished task leaves mill.tasks in the transaction that writes its row of mill.attempts.
--
-- A running task has a token, a worker and a session; tasks in other states have none of them. Every change
-- of a running task names its token. A task is blocked exactly while it waits for a permit.

-- Options -----------------------------------------------------------------------------------------

-- A column of mill.tasks is what statements of the queue search, order or change. Everything else that a caller
-- chooses is an attribute of mill.task_options. Every table and function copies this value as a whole: within the
-- schema, a new option is an attribute of the type, its check in mill.read_options if it needs one, and its default in
-- mill.effective if it has one. CONTRIBUTING.md names the other places. An attribute that is null has its default, and
-- a task with defaults only has no options.
DO $$
BEGIN
    IF to_regtype('mill.task_options') IS NULL THEN
        CREATE TYPE mill.task_options AS (
            tags text[],
            metadata jsonb,
            isolation mill.isolation,
            store_params boolean,
            store_output boolean,
            traceparent text,
            max_attempts mill.attempt_limit,
            retry_interval mill.retry_interval,
            backoff mill.backoff,
            jitter boolean,
            timeout mill.time_limit,
            mode mill.mode,
            at_most_once boolean,
            external boolean,
            explain boolean
        );
        -- The attributes that have a default.
        CREATE TYPE mill.effective_options AS (
            max_attempts integer,
            retry_interval interval,
            backoff mill.backoff,
            jitter boolean,
            mode mill.mode,
            at_most_once boolean,
            external boolean,
            explain boolean
        );
    END IF;
END
$$;
COMMENT ON TYPE mill.task_options IS 'Options of a task, from the argument options of mill.submit; null: default';
COMMENT ON TYPE mill.effective_options IS 'Options of a task with their defaults, from mill.effective';
COMMENT ON COLUMN mill.task_options.tags IS 'Labels to search by, sorted; null: none';
COMMENT ON COLUMN mill.task_options.metadata IS 'JSON object of the caller, which pgmill stores and shows; null: none';
COMMENT ON COLUMN mill.task_options.isolation IS
    'Isolation level of the transaction of the task, and of the transactions that a task in autocommit mode opens; '
    'null: the default of the login and the database';
COMMENT ON COLUMN mill.task_options.store_params IS
    'Whether the params of a finished task are stored. Except in mill.job_tasks: false if the task has params that are '
    'not stored, else null';
COMMENT ON COLUMN mill.task_options.store_output IS
    'Whether notices, result and plan of a finished task are stored. Except in mill.job_tasks: false or null';
COMMENT ON COLUMN mill.task_options.traceparent IS
    'Trace context of the caller, in the form of the HTTP header traceparent of W3C Trace Context; null: none';
COMMENT ON COLUMN mill.task_options.max_attempts IS
    'Number of failed attempts after which the task fails; the first attempt counts too';
COMMENT ON COLUMN mill.task_options.jitter IS
    'Whether the wait before a retry is drawn at random between zero and the full wait';
COMMENT ON COLUMN mill.task_options.timeout IS 'Maximum run time of an attempt; null: unlimited';
COMMENT ON COLUMN mill.task_options.at_most_once IS
    'Autocommit only: if it is not known whether an attempt ended, the task ends as unknown and is not retried '
    'automatically';
COMMENT ON COLUMN mill.task_options.external IS
    'Whether the task has effects outside this cluster. If so, its claim is made durable before the statement '
    'starts';
COMMENT ON COLUMN mill.task_options.explain IS
    'Whether the statement runs under EXPLAIN (ANALYZE, BUFFERS, WAL). The plan is stored instead of the rows';

-- The planner inlines the function, and computes only the attributes that a query uses. So it has no search_path, and
-- names the schema of its operator.
CREATE OR REPLACE FUNCTION mill.effective(options mill.task_options) RETURNS mill.effective_options
LANGUAGE sql STABLE AS $$
    SELECT ROW(
        coalesce(options.max_attempts, CASE WHEN options.at_most_once THEN 1 ELSE 3 END),
        coalesce(options.retry_interval, '10 seconds'),
        coalesce(options.backoff, 'exponential'),
        coalesce(options.jitter, options.backoff OPERATOR(pg_catalog.<>) 'fixed', true),
        coalesce(options.mode, 'transaction'),
        coalesce(options.at_most_once, false),
        coalesce(options.external, false),
        coalesce(options.explain, false))::mill.effective_options
$$;
COMMENT ON FUNCTION mill.effective IS 'Returns the options of a task with their defaults';
GRANT EXECUTE ON FUNCTION mill.effective TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.read_labels(document jsonb, OUT tags text[], OUT metadata jsonb)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong jsonb;
BEGIN
    IF jsonb_typeof(document->'tags') NOT IN ('array', 'null') THEN
        RAISE EXCEPTION 'tags is a JSON %, not an array of strings', jsonb_typeof(document->'tags')
            USING ERRCODE = '22023';
    ELSIF jsonb_typeof(document->'metadata') NOT IN ('object', 'null') THEN
        RAISE EXCEPTION 'metadata is a JSON %, not an object', jsonb_typeof(document->'metadata')
            USING ERRCODE = '22023';
    ELSIF octet_length((document->'metadata')::text) > 16384 THEN
        RAISE EXCEPTION 'metadata is % bytes long; the maximum is 16384 bytes',
            octet_length((document->'metadata')::text) USING ERRCODE = '54000';
    END IF;
    metadata := nullif(nullif(document->'metadata', 'null'), '{}');
    IF jsonb_typeof(document->'tags') = 'array' THEN
        IF jsonb_array_length(document->'tags') > 32 THEN
            RAISE EXCEPTION 'more than 32 tags' USING ERRCODE = '54000';
        END IF;
        SELECT t INTO wrong FROM jsonb_array_elements(document->'tags') AS t WHERE jsonb_typeof(t) <> 'string'
            OR (t #>> '{}') !~ '^[^[:cntrl:]]{1,64}$' OR btrim(t #>> '{}') <> t #>> '{}' LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'invalid tag %', wrong USING ERRCODE = '22023', HINT = 'A tag is a string of 1 to 64 '
                'characters without control characters and without spaces at its ends.';
        END IF;
        tags := (SELECT array_agg(DISTINCT t COLLATE "C" ORDER BY t COLLATE "C")
            FROM jsonb_array_elements_text(document->'tags') AS t);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.read_labels IS
    'Returns the tags (sorted, without duplicates) and the metadata of a document {"tags": ["etl", …], "metadata": '
    '{…}, …}; null for what the document does not have. Raises an error if a value is invalid';

CREATE OR REPLACE FUNCTION mill.check_traceparent(document jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF document->>'traceparent' !~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' THEN
        RAISE EXCEPTION 'invalid traceparent "%"', left(document->>'traceparent', 100) USING ERRCODE = '22023',
            HINT = 'A traceparent has a version, a trace id, a parent id and flags, as lower-case hexadecimal digits: '
                '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_traceparent IS
    'Raises an error if the document has a traceparent that does not have the form of W3C Trace Context';

CREATE OR REPLACE FUNCTION mill.check_at_most_once(options mill.task_options) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF options.mode IS DISTINCT FROM 'autocommit' OR options.max_attempts <> 1 THEN
        RAISE EXCEPTION 'at_most_once requires mode autocommit and allows one attempt' USING ERRCODE = '23514';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_at_most_once IS
    'Raises an error if a task with these options cannot run at most once';

CREATE OR REPLACE FUNCTION mill.read_options(document jsonb) RETURNS mill.task_options
LANGUAGE plpgsql STABLE AS $$
DECLARE
    options mill.task_options;
    isolation text;
BEGIN
    IF document ?| '{isolation,metadata,tags,traceparent}' THEN
        PERFORM mill.check_traceparent(document);
        -- Accepts the spelling of PostgreSQL, too: repeatable read.
        isolation := replace(lower(document->>'isolation'), ' ', '_');
        IF isolation <> ALL (enum_range(NULL::mill.isolation)::text[]) THEN
            RAISE EXCEPTION 'isolation is "%"', document->>'isolation' USING ERRCODE = '22023',
                HINT = format('Use one of %s.', array_to_string(enum_range(NULL::mill.isolation), ', '));
        END IF;
        options := jsonb_populate_record(NULL::mill.task_options,
            document - '{tags,metadata}'::text[] || jsonb_build_object('isolation', isolation));
        SELECT l.tags, l.metadata INTO options.tags, options.metadata FROM mill.read_labels(document) AS l;
    ELSE
        options := jsonb_populate_record(NULL::mill.task_options, document);
    END IF;
    IF options.at_most_once THEN
        PERFORM mill.check_at_most_once(options);
    END IF;
    RETURN CASE WHEN NOT options IS NULL THEN options END;
END
$$;
COMMENT ON FUNCTION mill.read_options IS
    'Returns the options of a task that the document has; null if it has none. Ignores other keys. Raises an error if '
    'a value is invalid';

CREATE OR REPLACE FUNCTION mill.check_keys(options jsonb, allowed text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unknown text;
BEGIN
    IF jsonb_typeof(options) <> 'object' THEN
        RAISE EXCEPTION 'options is a JSON %, not an object', jsonb_typeof(options) USING ERRCODE = '22023';
    END IF;
    SELECT k INTO unknown FROM jsonb_object_keys(options) AS k WHERE k <> ALL (allowed) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'unknown option "%"', unknown USING ERRCODE = '22023',
            HINT = format('The options are %s.', array_to_string(allowed, ', '));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_keys IS
    'Raises an error if options is not a JSON object or has a key that is not allowed';

CREATE OR REPLACE FUNCTION mill.task_option_names() RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(k ORDER BY k)
        FROM jsonb_object_keys(to_jsonb(jsonb_populate_record(NULL::mill.task_options, '{}'))) AS k
$$;
COMMENT ON FUNCTION mill.task_option_names IS 'Returns the names of the attributes of mill.task_options';

CREATE OR REPLACE FUNCTION mill.check_options(document jsonb, other_keys text[]) RETURNS void
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.check_keys(document,
        ARRAY(SELECT k FROM unnest(other_keys || mill.task_option_names()) AS k ORDER BY k))
$$;
COMMENT ON FUNCTION mill.check_options IS
    'Raises an error if a document has a key that is neither an option of tasks nor one of these. A new option is a '
    'new key, because a migration cannot add an argument while programs call the function';

CREATE OR REPLACE FUNCTION mill.check_labels(options jsonb) RETURNS void
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.check_keys(options, '{metadata,tags}')
$$;
COMMENT ON FUNCTION mill.check_labels IS
    'Raises an error if the argument options of a job, a run or a schedule has an unknown key';

-- Tables ------------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.tasks (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    -- The time of the call. The transaction may have begun long before.
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at mill.due_time NOT NULL DEFAULT clock_timestamp(),
    claimed_at timestamptz,
    session_started_at timestamptz,
    claimed_by uuid,
    token uuid,
    state mill.state NOT NULL DEFAULT 'pending',
    priority mill.priority NOT NULL DEFAULT 'normal',
    attempt mill.attempt_count NOT NULL DEFAULT 0,
    failures mill.attempt_count NOT NULL DEFAULT 0,
    transient_failures mill.attempt_count NOT NULL DEFAULT 0,
    crashes mill.attempt_count NOT NULL DEFAULT 0,
    session_pid integer,
    queue mill.queue_name NOT NULL DEFAULT 'default',
    name mill.label,
    key mill.label,
    concurrency_key mill.label,
    group_name mill.label,
    run_id bigint,
    node bigint,
    limits bigint[],
    blocking_limit_id bigint,
    start_by timestamptz,
    run_as mill.profile_name NOT NULL DEFAULT '',
    params jsonb,
    statement mill.statement NOT NULL,
    options mill.task_options,
    receipt uuid,
    CONSTRAINT node_of_a_run CHECK (node IS NULL OR run_id IS NOT NULL),
    CONSTRAINT blocked_has_limit CHECK ((state = 'blocked') = (blocking_limit_id IS NOT NULL)),
    CONSTRAINT running_is_claimed CHECK (
        num_nonnulls(token, claimed_by, claimed_at, session_pid, session_started_at)
        = CASE WHEN state = 'running' THEN 5 ELSE 0 END),
    CONSTRAINT running_has_started CHECK (state <> 'running' OR attempt > 0)
) WITH (
    -- This table changes constantly. It is vacuumed after a fixed number of changed rows, at full speed,
    -- and without the lock that truncation requires.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off,
    -- Stores large statements out of line, so that a claim copies the row without the statement.
    toast_tuple_target = 512
);
COMMENT ON TABLE mill.tasks IS 'Live tasks. A finished task moves from this table to mill.attempts';
COMMENT ON COLUMN mill.tasks.due_at IS 'Time before which the task is not claimed';
COMMENT ON COLUMN mill.tasks.token IS
    'Fencing token, random, one per claim. Every change of a running task requires it';
COMMENT ON COLUMN mill.tasks.claimed_by IS 'Worker that holds the claim: workers.id';
COMMENT ON COLUMN mill.tasks.session_pid IS
    'Backend of the reader that runs the statement. It is terminated before the task is reclaimed';
COMMENT ON COLUMN mill.tasks.session_started_at IS
    'backend_start of session_pid, which distinguishes that backend from a later one with the same pid';
COMMENT ON COLUMN mill.tasks.attempt IS 'Number of the running attempt, or of the last one';
COMMENT ON COLUMN mill.tasks.failures IS 'Attempts that failed or timed out';
COMMENT ON COLUMN mill.tasks.transient_failures IS
    'Attempts that ended with a serialization failure, a deadlock or a lost connection. Up to a bound they do not '
    'count towards max_attempts';
COMMENT ON COLUMN mill.tasks.crashes IS
    'Attempts whose worker died, and crashes of the server while no other task could be the cause. Up to '
    'settings.max_crashes they do not count towards max_attempts';
COMMENT ON COLUMN mill.tasks.key IS 'Deduplication key, unique among live tasks, see mill.dedup_keys';
COMMENT ON COLUMN mill.tasks.concurrency_key IS
    'Tasks with the same key run one at a time, or as many of them at once as the limit of the key allows';
COMMENT ON COLUMN mill.tasks.run_id IS
    'Run that the task belongs to. For a task without a node, which belongs to no run: the run in which the limit of '
    'its group counts the task';
COMMENT ON COLUMN mill.tasks.node IS 'Identifies the task within its run: run_tasks.node';
COMMENT ON COLUMN mill.tasks.limits IS
    'mill.limits.id of each permit that the task needs, in the order of acquisition; null: none. Not above 0: a limit '
    'that does not exist yet, see mill.required_limits';
COMMENT ON COLUMN mill.tasks.blocking_limit_id IS
    'Blocked tasks: the limit whose permit the task waits for. The task already holds the permits of the limits that '
    'precede this one in limits';
COMMENT ON COLUMN mill.tasks.run_as IS 'Profile whose login runs the task; empty: the default task login';
COMMENT ON COLUMN mill.tasks.start_by IS
    'Pending tasks: time at which the active period of the group closes. Claims then skip the task';
COMMENT ON COLUMN mill.tasks.params IS 'JSON array of values, bound as $1, $2, …';
COMMENT ON COLUMN mill.tasks.receipt IS
    'Tasks with a target: id of the receipt that the target stores when the task succeeds; null: no target';

-- Used by the claim (crates/queue/src/transition/claim.rs): each queue, priority and profile is one index
-- range.
CREATE INDEX IF NOT EXISTS tasks_pending ON mill.tasks (queue, priority, run_as, id)
    WHERE state = 'pending';
-- Used by mill.grant_permits to find the oldest tasks of each limit and priority.
CREATE INDEX IF NOT EXISTS tasks_blocked ON mill.tasks (blocking_limit_id, priority, id)
    WHERE state = 'blocked';
-- Used by mill.block_pending to find the pending tasks of a group after the settings of the group
-- change.
CREATE INDEX IF NOT EXISTS tasks_group ON mill.tasks (group_name)
    WHERE state = 'pending' AND group_name IS NOT NULL;
-- Used by the promoter (crates/queue/src/transition/promote.rs).
CREATE INDEX IF NOT EXISTS tasks_scheduled ON mill.tasks (due_at, id) WHERE state = 'scheduled';
-- Used by the reclaimer (crates/queue/src/transition/reclaim.rs) and mill.running. Statements that finish a
-- task filter by id and token, and never by state, so that the planner cannot choose this index for
-- them: while an old snapshot is open, the index is full of dead entries.
CREATE INDEX IF NOT EXISTS tasks_running ON mill.tasks (claimed_by) WHERE state = 'running';
-- Used by the duty that deletes old receipts (worker/src/target/upkeep.rs).
CREATE INDEX IF NOT EXISTS tasks_receipt ON mill.tasks (receipt) WHERE receipt IS NOT NULL;
-- Workers claim and promote. They can neither create a task nor change what it runs, and as whom: the task would then
-- run with the rights of a profile whose credentials another worker has.
REVOKE INSERT, UPDATE, DELETE ON mill.tasks FROM mill_worker;
GRANT SELECT, UPDATE (state, blocking_limit_id, attempt, start_by, claimed_at, claimed_by, token, session_pid,
    session_started_at) ON mill.tasks TO mill_worker;

CREATE OR REPLACE VIEW mill.visible_tasks AS
    -- A scalar subquery is evaluated once, a plain function call once per row.
    SELECT x.id, x.enqueued_at, x.due_at, x.claimed_at, x.session_started_at, x.claimed_by,
        x.state, x.priority, x.attempt, x.failures, x.transient_failures, x.crashes, x.session_pid, x.queue, x.name,
        x.key, x.concurrency_key, x.group_name, x.run_id, x.node, x.limits, x.blocking_limit_id, x.start_by, x.run_as,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.params END AS params,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.statement END AS statement,
        (x.options).timeout, (x.options).tags, (x.options).metadata, x.options, (mill.effective(x.options)).*
    FROM mill.tasks x;
COMMENT ON VIEW mill.visible_tasks IS
    'mill.tasks without tokens, for mill_viewer. Hides statements and params if settings.hide_statements is set';

CREATE OR REPLACE FUNCTION mill.is_short(statement text, params jsonb) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT octet_length(statement) <= 65536 AND coalesce(pg_column_size(params) <= 1000, true)
$$;
COMMENT ON FUNCTION mill.is_short IS
    'Returns whether a claim contains statement and params of a task. Neither value is read to find out';
GRANT EXECUTE ON FUNCTION mill.is_short TO mill_worker;

CREATE OR REPLACE FUNCTION mill.initial_state(due_at timestamptz, chain bigint[]) RETURNS mill.state
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN due_at > now() THEN 'scheduled' WHEN chain IS NOT NULL THEN 'blocked'
        ELSE 'pending' END::mill.state
$$;
COMMENT ON FUNCTION mill.initial_state IS
    'Returns the initial state of a task with this due time (null: now) and these limits';
GRANT EXECUTE ON FUNCTION mill.initial_state TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.dedup_keys (
    key text PRIMARY KEY,
    task_id bigint NOT NULL
);
COMMENT ON TABLE mill.dedup_keys IS
    'The live task of each deduplication key. A table of its own instead of an index on mill.tasks, so that tasks '
    'without a key have no overhead';
REVOKE INSERT, UPDATE, DELETE ON mill.dedup_keys FROM mill_worker;
GRANT SELECT ON mill.dedup_keys TO mill_worker;
