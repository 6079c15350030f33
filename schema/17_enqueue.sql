-- Enqueue: -> scheduled | blocked | pending, in the caller's transaction.
--
-- mill.enqueue and mill.enqueue_many are for people, mill.submit is for programs. mill.enqueue runs with
-- the rights of its caller: mill.profile, which it calls, needs them to decide whether the caller may
-- use a profile.

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

CREATE OR REPLACE FUNCTION mill.enqueue_many(
    statements text[],
    params jsonb[] DEFAULT NULL,
    names text[] DEFAULT NULL,
    queue text DEFAULT 'default',
    priority mill.priority DEFAULT NULL,
    due_at timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    retry_interval interval DEFAULT '10 seconds',
    backoff mill.backoff DEFAULT 'exponential',
    jitter boolean DEFAULT NULL,
    timeout interval DEFAULT NULL,
    mode mill.mode DEFAULT 'transaction',
    at_most_once boolean DEFAULT false,
    external boolean DEFAULT false,
    group_name text DEFAULT NULL,
    run_id bigint DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency integer DEFAULT NULL,
    profile uuid DEFAULT NULL,
    explain boolean DEFAULT false,
    options jsonb DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    queue_name text := coalesce(enqueue_many.queue, 'default');
    wanted_group text := coalesce(enqueue_many.group_name, (SELECT s.default_group FROM mill.settings s));
    chain bigint[];
    group_priority mill.priority;
    initial_state mill.state;
    profile_name text := CASE WHEN profile IS NULL THEN '' ELSE mill.name_of_profile(profile) END;
    stored mill.task_options;
    resolve boolean;
BEGIN
    IF cardinality(enqueue_many.params) <> cardinality(statements)
        OR cardinality(enqueue_many.names) <> cardinality(statements)
    THEN
        RAISE EXCEPTION 'statements, params and names differ in length' USING ERRCODE = '22023';
    END IF;
    -- As in mill.submit: a single query determines whether any statement needs the detailed checks.
    IF EXISTS (SELECT FROM unnest(statements, enqueue_many.params) AS s(statement, params), mill.settings x
        WHERE s.statement IS NULL OR s.params IS NOT NULL OR octet_length(s.statement) > x.statement_limit_bytes
            OR left(s.statement, 1000) !~ '[^[:space:]]'
            OR strpos(s.statement, chr(65279)) > 0)
    THEN
        statements := ARRAY(SELECT mill.check_statement(s.statement, s.params)
            FROM unnest(statements, enqueue_many.params) WITH ORDINALITY AS s(statement, params, n) ORDER BY s.n);
    END IF;
    IF profile_name <> '' THEN
        PERFORM mill.check_routine(profile_name, s.statement) FROM unnest(statements) AS s(statement);
    END IF;
    IF enqueue_many.explain THEN
        PERFORM mill.check_explain(s.statement, enqueue_many.mode) FROM unnest(statements) AS s(statement);
    END IF;
    IF options IS NOT NULL THEN
        PERFORM mill.check_options(options);
        stored := mill.read_options(options);
    END IF;
    resolve := options IS NOT NULL
        OR EXISTS (SELECT FROM mill.queues q WHERE q.name = queue_name AND NOT (q.store_params AND q.store_output));
    IF num_nonnulls(wanted_group, enqueue_many.concurrency_key, enqueue_many.concurrency) > 0
        OR EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = queue_name)
    THEN
        chain := mill.required_limits(queue_name, wanted_group, enqueue_many.run_id,
            enqueue_many.concurrency_key, enqueue_many.concurrency);
        SELECT g.priority INTO group_priority FROM mill.groups g WHERE g.name = wanted_group;
    END IF;
    initial_state := mill.initial_state(enqueue_many.due_at, chain);
    enqueue_many.priority := coalesce(enqueue_many.priority, group_priority, 'normal');
    IF initial_state <> 'scheduled' AND cardinality(statements) > 0 THEN
        PERFORM mill.wake_workers(mill.lane_bit(queue_name, enqueue_many.priority, profile_name));
    END IF;
    RETURN QUERY
        INSERT INTO mill.tasks (statement, params, name, queue, priority, due_at, state,
            blocking_limit_id, max_attempts, retry_interval, backoff, jitter, timeout, mode, at_most_once,
            external, explain, concurrency_key, group_name, run_id, limits, run_as, options, receipt)
        SELECT s.statement, s.params, s.name, queue_name, enqueue_many.priority,
            coalesce(enqueue_many.due_at, clock_timestamp()), initial_state,
            CASE WHEN initial_state = 'blocked' THEN chain[1] END,
            coalesce(enqueue_many.max_attempts, CASE WHEN enqueue_many.at_most_once THEN 1 ELSE 3 END),
            coalesce(enqueue_many.retry_interval, '10 seconds'), coalesce(enqueue_many.backoff, 'exponential'),
            coalesce(enqueue_many.jitter, enqueue_many.backoff <> 'fixed', true), enqueue_many.timeout,
            coalesce(enqueue_many.mode, 'transaction'), coalesce(enqueue_many.at_most_once, false),
            coalesce(enqueue_many.external, false), coalesce(enqueue_many.explain, false), enqueue_many.concurrency_key,
            wanted_group, enqueue_many.run_id, chain, profile_name,
            CASE WHEN resolve THEN mill.resolve_options(stored, queue_name, s.params) END,
            CASE WHEN profile_name <> '' THEN mill.new_receipt(profile_name) END
        FROM unnest(statements, enqueue_many.params, enqueue_many.names)
            WITH ORDINALITY AS s(statement, params, name, n)
        ORDER BY s.n
        RETURNING id;
END
$$;
COMMENT ON FUNCTION mill.enqueue_many IS
    'Enqueues many tasks with the same options, in order. Returns their ids. The arguments are those of mill.enqueue, '
    'except that profile => mill.profile(''name'') takes the place of run_as';
GRANT EXECUTE ON FUNCTION mill.enqueue_many TO mill_producer;

CREATE OR REPLACE FUNCTION mill.submit(
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
    profile uuid DEFAULT NULL,
    explain boolean DEFAULT NULL,
    options jsonb DEFAULT NULL,
    OUT id bigint,
    OUT created boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    chain bigint[];
    group_priority mill.priority;
    initial_state mill.state;
    stored mill.task_options;
    unusual boolean;
    limited boolean;
    unstored boolean;
    profile_name text := '';
BEGIN
    queue := coalesce(queue, 'default');
    -- Most tasks need no further check. A single query decides.
    SELECT coalesce(group_name, s.default_group),
            octet_length(statement) > s.statement_limit_bytes OR left(statement, 1000) !~ '[^[:space:]]'
                OR strpos(statement, chr(65279)) > 0,
            EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = queue),
            EXISTS (SELECT FROM mill.queues q WHERE q.name = queue AND NOT (q.store_params AND q.store_output))
        INTO group_name, unusual, limited, unstored FROM mill.settings s;
    IF statement IS NULL OR unusual OR limited
        OR num_nonnulls(params, group_name, concurrency_key, concurrency) > 0
    THEN
        statement := mill.check_statement(statement, params);
        chain := mill.required_limits(queue, group_name, run_id, concurrency_key, concurrency);
        SELECT g.priority INTO group_priority FROM mill.groups g WHERE g.name = group_name;
    END IF;
    IF explain THEN
        PERFORM mill.check_explain(statement, mode);
    END IF;
    IF profile IS NOT NULL THEN
        profile_name := mill.name_of_profile(profile);
        PERFORM mill.check_routine(profile_name, statement);
    END IF;
    IF options IS NOT NULL THEN
        PERFORM mill.check_options(options);
        stored := mill.read_options(options);
    END IF;
    IF options IS NOT NULL OR unstored THEN
        stored := mill.resolve_options(stored, queue, params);
    END IF;
    initial_state := mill.initial_state(due_at, chain);
    id := nextval('mill.tasks_id_seq');
    created := true;
    IF key IS NOT NULL THEN
        LOOP
            -- Waits for a concurrent transaction that inserts the same key. The server shows the comment in the
            -- context of the error of a deadlock.
            INSERT INTO mill.dedup_keys AS k (key, task_id) VALUES (key, id) ON CONFLICT DO NOTHING
                /* to avoid deadlocks, enqueue the keys of a transaction in ascending order */;
            EXIT WHEN FOUND;
            SELECT k.task_id, false INTO id, created FROM mill.dedup_keys k WHERE k.key = submit.key;
            IF FOUND THEN
                RETURN;
            END IF;
            -- The task with this key finished in the meantime.
            id := nextval('mill.tasks_id_seq');
            created := true;
        END LOOP;
    END IF;
    priority := coalesce(priority, group_priority, 'normal');
    IF initial_state <> 'scheduled' THEN
        PERFORM mill.wake_workers(mill.lane_bit(queue, priority, profile_name));
    END IF;
    INSERT INTO mill.tasks (id, statement, params, name, queue, priority, due_at, state, blocking_limit_id,
        max_attempts, retry_interval, backoff, jitter, timeout, mode, at_most_once, external, explain, key,
        concurrency_key, group_name, run_id, limits, run_as, options, receipt)
    VALUES (id, statement, params, name, queue, priority, coalesce(due_at, clock_timestamp()), initial_state,
        CASE WHEN initial_state = 'blocked' THEN chain[1] END,
        coalesce(max_attempts, CASE WHEN at_most_once THEN 1 ELSE 3 END),
        coalesce(retry_interval, '10 seconds'), coalesce(backoff, 'exponential'),
        coalesce(jitter, backoff <> 'fixed', true), timeout, coalesce(mode, 'transaction'),
        coalesce(at_most_once, false), coalesce(external, false), coalesce(explain, false),
        key, concurrency_key, group_name,
        run_id, chain, profile_name, stored, CASE WHEN profile IS NOT NULL THEN mill.new_receipt(profile_name) END);
END
$$;
COMMENT ON FUNCTION mill.submit IS
    'Enqueues one task, for programs. SQL sessions use mill.enqueue. created: whether a task was enqueued; false if a '
    'live task has the key, and id is the id of that task. profile: a key returned by mill.profile';
GRANT EXECUTE ON FUNCTION mill.submit TO mill_producer;

CREATE OR REPLACE FUNCTION mill.enqueue(
    statement text,
    params jsonb DEFAULT NULL,
    name text DEFAULT NULL,
    queue text DEFAULT 'default',
    priority mill.priority DEFAULT NULL,
    due_at timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    retry_interval interval DEFAULT '10 seconds',
    backoff mill.backoff DEFAULT 'exponential',
    jitter boolean DEFAULT NULL,
    timeout interval DEFAULT NULL,
    mode mill.mode DEFAULT 'transaction',
    at_most_once boolean DEFAULT false,
    external boolean DEFAULT false,
    key text DEFAULT NULL,
    group_name text DEFAULT NULL,
    run_id bigint DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency integer DEFAULT NULL,
    run_as text DEFAULT NULL,
    explain boolean DEFAULT false,
    options jsonb DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    submitted record;
BEGIN
    SELECT s.id, s.created INTO submitted FROM mill.submit(statement, params, name, queue, priority,
        due_at, max_attempts, retry_interval, backoff, jitter, timeout, mode, at_most_once,
        external, key, group_name, run_id, concurrency_key, concurrency,
        CASE WHEN run_as IS NOT NULL THEN mill.profile(run_as) END, explain, options) s;
    IF NOT submitted.created THEN
        RAISE NOTICE 'no task was submitted: task % with key "%" is live', submitted.id, key;
    END IF;
    RETURN submitted.id;
END
$$;
COMMENT ON FUNCTION mill.enqueue IS
    'Enqueues one task in the caller''s transaction. Returns its id. If a live task has the key, returns the id of '
    'that task and raises a notice. options: {"tags": ["etl"], "metadata": {"owner": "bi"}}';
GRANT EXECUTE ON FUNCTION mill.enqueue TO mill_producer;
