-- Routines of profiles: a profile restricted to calls of allowed routines.
--
-- The check is a list of accepted forms, not a search for forbidden ones: the statement has to match one
-- regular expression as a whole, which covers no comment, no operator, no nested call and no second
-- statement. The login of the profile remains the boundary of what a task can do.

CREATE OR REPLACE FUNCTION mill.called_routine(statement text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    space CONSTANT text := $re$[ \t\n\r\f]*$re$;
    -- The server folds and truncates other identifiers by rules that depend on its settings.
    word CONSTANT text := $re$[A-Za-z_][A-Za-z0-9_$]*$re$;
    identifier CONSTANT text := '((?:' || word || $re$)|"(?:[^"]|"")+")$re$;
    -- A constant with a backslash is refused, because its meaning depends on standard_conforming_strings.
    constant_value CONSTANT text := $re$(?:\$[0-9]+|'(?:[^'\\]|'')*'|[-+]?[0-9]+(?:\.[0-9]+)?|true|false|null)$re$;
    type CONSTANT text := '(?:text|varchar|bool|boolean|smallint|int|integer|bigint|int2|int4|int8|numeric|decimal|real'
        '|float4|float8|date|time|timestamp|timestamptz|interval|uuid|json|jsonb|bytea)(?:[[][]])?';
    argument CONSTANT text := '(?:' || word || space || '(?:=>|:=)' || space || ')?' || constant_value
        || '(?:' || space || '::' || space || type || ')?';
    parts text[];
BEGIN
    IF octet_length(statement) > 100000 THEN
        RETURN NULL;
    END IF;
    parts := regexp_match(statement, '(?i)^' || space || $re$(?:call|select)[ \t\n\r\f]+$re$ || identifier || space
        || '[.]' || space || identifier || space || '[(]' || space
        || '(?:' || argument || '(?:' || space || ',' || space || argument || ')*)?' || space || '[)]'
        || space || ';?' || space || '$');
    IF parts IS NULL THEN
        RETURN NULL;
    END IF;
    parts := parse_ident(parts[1] || '.' || parts[2]);
    RETURN format('%I.%I', parts[1], parts[2]);
END
$function$;
COMMENT ON FUNCTION mill.called_routine IS
    'Returns the name schema.routine if the statement is exactly one CALL or SELECT of this routine, whose arguments '
    'are constants, parameters such as $1 and casts of these to built-in types; otherwise null';

CREATE OR REPLACE FUNCTION mill.check_routine(profile text, statement text, task text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    allowed text[];
BEGIN
    SELECT p.routines INTO allowed FROM mill.profiles p WHERE p.name = check_routine.profile;
    IF allowed IS NULL OR mill.called_routine(statement) = ANY (allowed) THEN
        RETURN;
    END IF;
    RAISE EXCEPTION '%profile "%" allows only calls of %',
        CASE WHEN task <> '' THEN format('task "%s": ', task) ELSE '' END, profile,
        array_to_string(allowed, ', ') USING ERRCODE = '22023',
        HINT = 'The statement has to be one CALL schema.routine(…) or SELECT schema.routine(…), with constants and '
            'parameters such as $1 as arguments.';
END
$$;
COMMENT ON FUNCTION mill.check_routine IS
    'Raises an error if the profile is restricted to routines and the statement is not a call of one of them';

CREATE OR REPLACE FUNCTION mill.set_profile_routines(name text, routines text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted text[];
    missing text;
BEGIN
    SELECT array_agg(format('%I.%I', r.parts[1], r.parts[2]) ORDER BY r.place) INTO wanted
        FROM (SELECT parse_ident(g.routine) AS parts, g.place
            FROM unnest(set_profile_routines.routines) WITH ORDINALITY AS g(routine, place)) AS r;
    SELECT g.routine INTO missing FROM unnest(set_profile_routines.routines) AS g(routine)
        WHERE NOT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
            WHERE ARRAY[n.nspname::text, p.proname::text] = parse_ident(g.routine)) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'there is no routine "%"', missing USING ERRCODE = '22023',
            HINT = 'Give the name with its schema and without arguments, such as app.load.';
    END IF;
    UPDATE mill.profiles p SET routines = wanted WHERE p.name = set_profile_routines.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no profile "%"', name USING ERRCODE = '22023';
    END IF;
    PERFORM mill.record_audit('set_profile_routines', 'profile ' || name, jsonb_build_object('routines', wanted));
END
$$;
COMMENT ON FUNCTION mill.set_profile_routines IS
    'Restricts a profile to tasks that call one of these routines, given as schema.routine; null: any statement. '
    'Applies to later enqueues, retries and runs. For mill_owner only';
