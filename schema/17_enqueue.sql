-- Enqueue: -> scheduled | blocked | pending, in the caller's transaction.
--
-- mill.enqueue and mill.enqueue_many are for people, mill.submit and mill.submit_many for programs. mill.enqueue runs
-- with the rights of its caller: mill.profile, which it calls, needs them to decide whether the caller may use a
-- profile.

CREATE OR REPLACE FUNCTION mill.find_byte_order_mark(sql text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    -- The characters of words: letters, digits, _ and everything outside of ASCII. The first is not a digit.
    first CONSTANT text := $re$[^\x01-\x40\x5b-\x5e\x60\x7b-\x7f]$re$;
    part CONSTANT text := $re$[^\x01-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x7f]$re$;
    found text[];
    token text;
    place integer := 1;
    next_place integer := 1;
    closing text;
    depth integer;
    after_word boolean := false;
    after_e boolean := false;
    escapes boolean := false;
BEGIN
    -- The first group is the start of a dollar quote without its last dollar sign, which inside of a quote can be the
    -- first one of the end.
    FOR found IN SELECT m FROM regexp_matches(sql, $re$(\$(?:$re$ || first || part || $re$*)?)(?=\$)$re$
        || $re$|(\ufeff|--|/\*|\*/|[^-\ufeff'"$/*\n\r\\]+|.)$re$, 'g') AS m
    LOOP
        token := coalesce(found[1], found[2]);
        IF place < next_place THEN
            NULL;
        ELSIF closing IS NULL THEN
            -- A constant with escapes, E'…', can continue in the next line.
            escapes := CASE WHEN token = '''' THEN escapes OR after_e
                ELSE escapes AND (token = '--' OR token !~ $re$[^ \t\n\r\f\v]$re$) END;
            IF found[1] IS NOT NULL AND NOT after_word THEN
                closing := token;
                next_place := place + length(token) + 1;
            ELSIF token ~ $re$\ufeff$re$ THEN
                RETURN place + length(substring(token FROM $re$^[^\ufeff]*$re$));
            ELSIF token IN ('''', '"', '--', '/*') THEN
                closing := CASE token WHEN '--' THEN chr(10) WHEN '/*' THEN '*/' ELSE token END;
                depth := 1;
            END IF;
            after_e := token ~ $re$[eE]\Z$re$ AND token !~ (part || $re$[eE]\Z$re$);
            after_word := token ~ (first || part || $re$*\Z$re$)
                OR after_word AND token ~ ($re$^\$?$re$ || part || $re$*\Z$re$);
        ELSIF closing = '*/' AND token IN ('/*', '*/') THEN
            depth := depth + CASE token WHEN '/*' THEN 1 ELSE -1 END;
            closing := CASE WHEN depth > 0 THEN closing END;
        ELSIF token = closing OR closing = chr(10) AND token = chr(13) THEN
            next_place := place + length(token) + CASE WHEN found[1] IS NULL THEN 0 ELSE 1 END;
            closing := NULL;
        ELSIF escapes AND closing = '''' AND ascii(token) = 92 THEN
            next_place := place + 2;
        END IF;
        place := place + length(token);
    END LOOP;
    RETURN NULL;
END
$function$;
COMMENT ON FUNCTION mill.find_byte_order_mark IS
    'Returns the place of the first byte order mark (U+FEFF) that is not in a constant, a quoted name or a comment: '
    'the number of the character, from 1';

CREATE OR REPLACE FUNCTION mill.check_statement(statement text, params jsonb) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    limit_bytes integer;
    mark CONSTANT text := chr(65279);
    place integer;
BEGIN
    -- Editors begin a file with a byte order mark, and the server takes the mark for a part of a word.
    IF strpos(statement, mark) > 0 THEN
        statement := ltrim(statement, mark);
        place := mill.find_byte_order_mark(statement);
        IF place IS NOT NULL THEN
            RAISE EXCEPTION 'the statement has a byte order mark (U+FEFF) at character %', place
                USING ERRCODE = '22023', HINT = 'Some editors write this invisible character at the start of a file. '
                    'Remove it where files were joined.';
        END IF;
    END IF;
    -- The first 1000 characters usually suffice; the whole statement is checked only if they are blank.
    IF statement IS NULL OR (left(statement, 1000) !~ '[^[:space:]]' AND statement !~ '[^[:space:]]') THEN
        RAISE EXCEPTION 'the statement is empty' USING ERRCODE = '22023';
    END IF;
    SELECT s.statement_limit_bytes INTO limit_bytes FROM mill.settings s;
    IF octet_length(statement) > limit_bytes THEN
        RAISE EXCEPTION 'the statement is % bytes long; the maximum is % bytes', octet_length(statement), limit_bytes
            USING ERRCODE = '54000',
                HINT = 'Load bulk data from a table or a server-side file, or raise statement_limit_bytes '
                    'in mill.settings.';
    END IF;
    IF jsonb_typeof(params) <> 'array' THEN
        RAISE EXCEPTION 'params is a JSON %, not an array', jsonb_typeof(params)
            USING ERRCODE = '22023', HINT = 'Give the values of $1, $2, … in order: ''["2026-01-01", 7]''.';
    END IF;
    IF jsonb_array_length(params) > 65535 THEN
        RAISE EXCEPTION 'params has more than 65535 values' USING ERRCODE = '54000';
    END IF;
    IF params IS NOT NULL THEN
        PERFORM mill.check_size('params are', params);
    END IF;
    RETURN statement;
END
$$;
COMMENT ON FUNCTION mill.check_statement IS
    'Returns the statement without a byte order mark at its start. Raises an error if the statement is empty or has '
    'another such mark, if the statement or params exceed the size limit, or if params is not a JSON array';

CREATE OR REPLACE FUNCTION mill.resolve_options(options mill.task_options, queue text, params jsonb)
RETURNS mill.task_options
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    settings mill.queues;
BEGIN
    SELECT q.* INTO settings FROM mill.queues q WHERE q.name = resolve_options.queue;
    options.store_params := CASE WHEN params IS NOT NULL
        AND NOT coalesce(options.store_params, settings.store_params, true) THEN false END;
    options.store_output := CASE WHEN NOT coalesce(options.store_output, settings.store_output, true) THEN false END;
    RETURN CASE WHEN NOT options IS NULL THEN options END;
END
$$;
COMMENT ON FUNCTION mill.resolve_options IS
    'Returns the options of a task with these params, after the defaults of its queue have been applied';

CREATE OR REPLACE FUNCTION mill.check_explain(statement text, mode mill.mode) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF mode = 'autocommit' THEN
        RAISE EXCEPTION 'a task in autocommit mode cannot be explained' USING ERRCODE = '22023',
            HINT = 'Omit the mode: EXPLAIN ANALYZE runs the statement once, in a transaction.';
    ELSIF statement !~*
        $re$^(\s|\(|--[^\n]*\n|/\*([^*]|\*+[^*/])*\*+/)*(select|insert|update|delete|merge|with|values|table)\M$re$
    THEN
        RAISE EXCEPTION 'EXPLAIN does not support this statement' USING ERRCODE = '22023',
            HINT = 'explain supports a single plain SELECT, INSERT, UPDATE, DELETE, MERGE, VALUES or WITH.';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_explain IS
    'Raises an error if EXPLAIN does not support the statement, or if the mode is not transaction. Checks only the '
    'first keyword of the statement. Whether there is only one statement is checked when the task runs';

CREATE OR REPLACE FUNCTION mill.read_task(document jsonb, keys text[]) RETURNS mill.tasks
LANGUAGE plpgsql STABLE AS $$
DECLARE
    task mill.tasks;
    rest CONSTANT jsonb := CASE WHEN jsonb_typeof(document) = 'object' THEN document - keys ELSE document END;
BEGIN
    IF rest <> '{}' THEN
        -- For usual options, this list is faster than a look at the type.
        IF jsonb_typeof(rest) <> 'object' OR rest - '{backoff,max_attempts,metadata,mode,retry_interval,tags,timeout,
            traceparent}'::text[] <> '{}'
        THEN
            PERFORM mill.check_options(rest, keys);
        END IF;
        task.options := mill.read_options(rest);
    END IF;
    -- The checks of the columns' domains on a row without values would take longer.
    task.run_as := '';
    IF document IS NOT NULL THEN
        task := jsonb_populate_record(task, document);
        IF document->>'profile' IS NOT NULL THEN
            task.run_as := mill.name_of_profile((document->>'profile')::uuid);
        END IF;
        IF document->>'due_in' IS NOT NULL THEN
            task.due_at := now() + (document->>'due_in')::interval;
        END IF;
    END IF;
    IF task.queue IS NULL THEN
        task.queue := 'default';
    END IF;
    RETURN task;
END
$$;
COMMENT ON FUNCTION mill.read_task IS
    'Returns the columns and the options of a new task that the document has, for mill.submit, mill.submit_many '
    'and mill.add_run_task. keys: allowed keys that are no options. Raises an error if another key is unknown or a '
    'value is invalid';

CREATE OR REPLACE FUNCTION mill.check_task(task mill.tasks, statement text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF task.run_as <> '' THEN
        PERFORM mill.check_routine(task.run_as, statement);
    END IF;
    IF (task.options).explain THEN
        PERFORM mill.check_explain(statement, (task.options).mode);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_task IS 'Raises an error if a new task with these options cannot have the statement';

CREATE OR REPLACE FUNCTION mill.with_limits(task mill.tasks, concurrency integer) RETURNS mill.tasks
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    task.limits := mill.required_limits(task.queue, task.group_name, task.run_id, task.concurrency_key, concurrency);
    task.priority := coalesce(task.priority,
        (SELECT g.priority FROM mill.groups g WHERE g.name = task.group_name));
    RETURN task;
END
$$;
COMMENT ON FUNCTION mill.with_limits IS
    'Returns a new task with its limits, and with the priority of its group if it has none';

CREATE OR REPLACE FUNCTION mill.submit_many(statements text[], params jsonb[] DEFAULT NULL,
    names text[] DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    task mill.tasks;
    resolve boolean;
BEGIN
    IF cardinality(submit_many.params) <> cardinality(statements)
        OR cardinality(submit_many.names) <> cardinality(statements)
    THEN
        RAISE EXCEPTION 'statements, params and names differ in length' USING ERRCODE = '22023';
    END IF;
    -- As in mill.submit: a single query determines whether any statement needs the detailed checks.
    IF EXISTS (SELECT FROM unnest(statements, submit_many.params) AS s(statement, params), mill.settings x
        WHERE s.statement IS NULL OR s.params IS NOT NULL OR octet_length(s.statement) > x.statement_limit_bytes
            OR left(s.statement, 1000) !~ '[^[:space:]]'
            OR strpos(s.statement, chr(65279)) > 0)
    THEN
        statements := ARRAY(SELECT mill.check_statement(s.statement, s.params)
            FROM unnest(statements, submit_many.params) WITH ORDINALITY AS s(statement, params, n) ORDER BY s.n);
    END IF;
    task := mill.read_task(submit_many.options,
        '{concurrency,concurrency_key,due_at,due_in,group_name,priority,profile,queue,run_id}');
    task.group_name := coalesce(task.group_name, (SELECT s.default_group FROM mill.settings s));
    IF task.run_as <> '' OR (task.options).explain THEN
        PERFORM mill.check_task(task, s.statement) FROM unnest(statements) AS s(statement);
    END IF;
    resolve := num_nonnulls((task.options).store_params, (task.options).store_output) > 0 OR EXISTS (SELECT
        FROM mill.queues q WHERE q.name = task.queue AND NOT (q.store_params AND q.store_output));
    IF num_nonnulls(task.group_name, task.concurrency_key, submit_many.options->>'concurrency') > 0
        OR EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = task.queue)
    THEN
        task := mill.with_limits(task, (submit_many.options->>'concurrency')::integer);
    END IF;
    task.state := mill.initial_state(task.due_at, task.limits);
    task.priority := coalesce(task.priority, 'normal');
    IF task.state <> 'scheduled' AND cardinality(statements) > 0 THEN
        PERFORM mill.wake_workers(mill.lane_bit(task.queue, task.priority, task.run_as));
    END IF;
    RETURN QUERY
        INSERT INTO mill.tasks (statement, params, name, queue, priority, due_at, state, blocking_limit_id,
            concurrency_key, group_name, run_id, limits, run_as, options, receipt)
        SELECT s.statement, s.params, s.name, task.queue, task.priority, coalesce(task.due_at, clock_timestamp()),
            task.state, CASE WHEN task.state = 'blocked' THEN task.limits[1] END, task.concurrency_key,
            task.group_name, task.run_id, task.limits, task.run_as,
            CASE WHEN resolve THEN mill.resolve_options(task.options, task.queue, s.params) ELSE task.options END,
            CASE WHEN task.run_as <> '' THEN mill.new_receipt(task.run_as) END
        FROM unnest(statements, submit_many.params, submit_many.names)
            WITH ORDINALITY AS s(statement, params, name, n)
        ORDER BY s.n
        RETURNING id;
END
$$;
COMMENT ON FUNCTION mill.submit_many IS
    'Enqueues many tasks with the same options, in order, for programs. SQL sessions use mill.enqueue_many. Returns '
    'their ids. options: as of mill.submit, without name and key';
GRANT EXECUTE ON FUNCTION mill.submit_many TO mill_producer;

CREATE OR REPLACE FUNCTION mill.claim_key(key text, task_id bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live bigint;
BEGIN
    LOOP
        -- Waits for a concurrent transaction that inserts the same key. The server shows the comment in the
        -- context of the error of a deadlock.
        INSERT INTO mill.dedup_keys AS k (key, task_id) VALUES (claim_key.key, claim_key.task_id) ON CONFLICT DO NOTHING
            /* to avoid deadlocks, enqueue the keys of a transaction in ascending order */;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        SELECT k.task_id INTO live FROM mill.dedup_keys k WHERE k.key = claim_key.key;
        -- Otherwise, the task with this key finished in the meantime.
        IF FOUND THEN
            RETURN live;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.claim_key IS
    'Gives the deduplication key to a new task and returns null, or returns the live task that has the key';

CREATE OR REPLACE FUNCTION mill.submit(statement text, params jsonb DEFAULT NULL, options jsonb DEFAULT NULL,
    OUT id bigint, OUT created boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    task mill.tasks;
    live bigint;
    unusual boolean;
    limited boolean;
    unstored boolean;
BEGIN
    task := mill.read_task(options,
        '{concurrency,concurrency_key,due_at,due_in,group_name,key,name,priority,profile,queue,run_id}');
    -- Most tasks need no further check. A single query decides.
    SELECT coalesce(task.group_name, s.default_group),
            octet_length(statement) > s.statement_limit_bytes OR left(statement, 1000) !~ '[^[:space:]]'
                OR strpos(statement, chr(65279)) > 0,
            EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = task.queue),
            EXISTS (SELECT FROM mill.queues q WHERE q.name = task.queue AND NOT (q.store_params AND q.store_output))
        INTO task.group_name, unusual, limited, unstored FROM mill.settings s;
    IF statement IS NULL OR unusual OR params IS NOT NULL THEN
        statement := mill.check_statement(statement, params);
    END IF;
    IF limited OR num_nonnulls(task.group_name, task.concurrency_key, options->>'concurrency') > 0 THEN
        task := mill.with_limits(task, (options->>'concurrency')::integer);
    END IF;
    IF task.run_as <> '' OR (task.options).explain THEN
        PERFORM mill.check_task(task, statement);
    END IF;
    IF unstored OR num_nonnulls((task.options).store_params, (task.options).store_output) > 0 THEN
        task.options := mill.resolve_options(task.options, task.queue, params);
    END IF;
    task.state := mill.initial_state(task.due_at, task.limits);
    id := nextval('mill.tasks_id_seq');
    IF task.key IS NOT NULL THEN
        live := mill.claim_key(task.key, id);
    END IF;
    created := live IS NULL;
    IF NOT created THEN
        id := live;
        RETURN;
    END IF;
    task.priority := coalesce(task.priority, 'normal');
    IF task.state <> 'scheduled' THEN
        PERFORM mill.wake_workers(mill.lane_bit(task.queue, task.priority, task.run_as));
    END IF;
    INSERT INTO mill.tasks (id, statement, params, name, queue, priority, due_at, state, blocking_limit_id, key,
        concurrency_key, group_name, run_id, limits, run_as, options, receipt)
    VALUES (id, statement, params, task.name, task.queue, task.priority, coalesce(task.due_at, clock_timestamp()),
        task.state, CASE WHEN task.state = 'blocked' THEN task.limits[1] END, task.key, task.concurrency_key,
        task.group_name, task.run_id, task.limits, task.run_as, task.options,
        CASE WHEN task.run_as <> '' THEN mill.new_receipt(task.run_as) END);
END
$$;
COMMENT ON FUNCTION mill.submit IS
    'Enqueues one task, for programs. SQL sessions use mill.enqueue. options: {"name", "key", "queue", "priority", '
    '"due_at", "due_in": "5 min", "group_name", "run_id", "concurrency_key", "concurrency", "profile": key returned by '
    'mill.profile, and the attributes of mill.task_options}. created: whether a task was enqueued; false if a live '
    'task has the key, and id is the id of that task';
GRANT EXECUTE ON FUNCTION mill.submit TO mill_producer;

CREATE OR REPLACE FUNCTION mill.enqueue(
    statement text,
    params jsonb DEFAULT NULL,
    name text DEFAULT NULL,
    queue text DEFAULT NULL,
    priority mill.priority DEFAULT NULL,
    due_at timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    retry_interval interval DEFAULT NULL,
    backoff mill.backoff DEFAULT NULL,
    jitter boolean DEFAULT NULL,
    timeout interval DEFAULT NULL,
    mode mill.mode DEFAULT NULL,
    at_most_once boolean DEFAULT NULL,
    external boolean DEFAULT NULL,
    key text DEFAULT NULL,
    group_name text DEFAULT NULL,
    run_id bigint DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency integer DEFAULT NULL,
    run_as text DEFAULT NULL,
    explain boolean DEFAULT NULL,
    options jsonb DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    submitted record;
BEGIN
    IF pg_catalog.num_nonnulls(name, queue, priority, due_at, max_attempts, retry_interval, backoff, jitter, timeout,
        mode, at_most_once, external, key, group_name, run_id, concurrency_key, concurrency, run_as, explain)
        OPERATOR(pg_catalog.>) 0
    THEN
        options := pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object('name', name, 'queue', queue,
            'priority', priority, 'due_at', due_at, 'max_attempts', max_attempts, 'retry_interval', retry_interval,
            'backoff', backoff, 'jitter', jitter, 'timeout', timeout, 'mode', mode, 'at_most_once', at_most_once,
            'external', external, 'key', key, 'group_name', group_name, 'run_id', run_id,
            'concurrency_key', concurrency_key, 'concurrency', concurrency,
            'profile', CASE WHEN run_as IS NOT NULL THEN mill.profile(run_as) END, 'explain', explain))
            OPERATOR(pg_catalog.||) coalesce(options, '{}');
    END IF;
    SELECT s.id, s.created INTO submitted FROM mill.submit(statement, params, options) s;
    IF NOT submitted.created THEN
        RAISE NOTICE 'no task was submitted: task % with key "%" is live', submitted.id, key;
    END IF;
    RETURN submitted.id;
END
$$;
COMMENT ON FUNCTION mill.enqueue IS
    'Enqueues one task in the caller''s transaction. Returns its id. If a live task has the key, returns the id of '
    'that task and raises a notice. Null: the default, which docs/enqueue.md lists. options: {"tags": ["etl"], '
    '"metadata": {"owner": "bi"}}, and other options, as of mill.submit';
GRANT EXECUTE ON FUNCTION mill.enqueue TO mill_producer;

CREATE OR REPLACE FUNCTION mill.enqueue_many(
    statements text[],
    params jsonb[] DEFAULT NULL,
    names text[] DEFAULT NULL,
    queue text DEFAULT NULL,
    priority mill.priority DEFAULT NULL,
    due_at timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    retry_interval interval DEFAULT NULL,
    backoff mill.backoff DEFAULT NULL,
    jitter boolean DEFAULT NULL,
    timeout interval DEFAULT NULL,
    mode mill.mode DEFAULT NULL,
    at_most_once boolean DEFAULT NULL,
    external boolean DEFAULT NULL,
    group_name text DEFAULT NULL,
    run_id bigint DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency integer DEFAULT NULL,
    profile uuid DEFAULT NULL,
    explain boolean DEFAULT NULL,
    options jsonb DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.submit_many(statements, params, names, jsonb_strip_nulls(jsonb_build_object('queue', queue,
        'priority', priority, 'due_at', due_at, 'max_attempts', max_attempts, 'retry_interval', retry_interval,
        'backoff', backoff, 'jitter', jitter, 'timeout', timeout, 'mode', mode, 'at_most_once', at_most_once,
        'external', external, 'group_name', group_name, 'run_id', run_id, 'concurrency_key', concurrency_key,
        'concurrency', concurrency, 'profile', profile, 'explain', explain)) || coalesce(options, '{}'))
$$;
COMMENT ON FUNCTION mill.enqueue_many IS
    'Enqueues many tasks with the same options, in order. Returns their ids. The arguments are those of mill.enqueue, '
    'except that profile => mill.profile(''name'') takes the place of run_as';
GRANT EXECUTE ON FUNCTION mill.enqueue_many TO mill_producer;
