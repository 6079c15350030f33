-- Privileges on all objects, and the end of the transaction.
--
-- Privileges on a single object are granted where the object is created.
--
-- PUBLIC may use the schema and execute the functions that complete a task, which require the token of a
-- claim and its session. PostgreSQL lets everybody execute a new function, so this REVOKE follows all
-- functions, and the grants of these follow the REVOKE.
--
-- mill_viewer reads the tables and views, with three exceptions. Nobody reads tokens and the keys of
-- profiles. Statements and their output are readable for mill_operator only, and for mill_viewer through
-- the visible_* views. The partitions of mill.attempts are readable through mill.attempts only.

-- PUBLIC may complete a claim of its own session whose token the caller knows, and nothing else.
GRANT USAGE ON SCHEMA mill TO PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA mill FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA mill FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mill.complete, mill.complete_with_proof TO PUBLIC;

GRANT SELECT ON ALL TABLES IN SCHEMA mill TO mill_viewer;
-- Whoever knows the token of a running task can complete the task, and whoever knows the key of a
-- profile can use the profile. Therefore no role can read them. The receipt of a live task allows its
-- login in the target to complete the task there.
DO $$
DECLARE
    kept record;
    open text;
BEGIN
    -- A partition of mill.attempts is a table of its own, on which the list below restricts no column. To read
    -- mill.attempts, no privilege on its partitions is needed.
    FOR kept IN SELECT c.relname AS name FROM pg_class c
        WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind = 'r'
            AND (c.relispartition OR c.relname ~ '^attempts_[0-9]{8}$')
    LOOP
        EXECUTE format('REVOKE ALL ON mill.%I FROM mill_viewer', kept.name);
    END LOOP;
    FOR kept IN SELECT * FROM (VALUES
        ('tasks', ARRAY['token', 'receipt'], ARRAY['statement', 'params']),
        ('attempts', ARRAY['token'],
            ARRAY['receipt', 'statement', 'params', 'notices', 'result', 'plan', 'message', 'detail', 'hint',
                'context']),
        ('job_tasks', '{}', ARRAY['statement', 'params']),
        ('job_versions', '{}', ARRAY['definition']),
        ('run_tasks', '{}', ARRAY['statement', 'params', 'result', 'message']),
        ('run_events', '{}', ARRAY['result', 'message']),
        ('progress', '{}', ARRAY['percent', 'message', 'notices']),
        ('runs', '{}', ARRAY['params']),
        ('schedules', '{}', ARRAY['params', 'definition', 'timing', 'new_timing', 'new_timing_error', 'trigger',
            'trigger_result', 'error']),
        ('backfills', '{}', ARRAY['params', 'error']),
        ('schedule_log', '{}', ARRAY['message']),
        ('subscriptions', '{}', ARRAY['statement']),
        ('notifications', '{}', ARRAY['document']),
        ('profiles', ARRAY['key'], '{}')) AS t(name, from_all, from_viewers)
    LOOP
        SELECT string_agg(quote_ident(a.attname), ', ') INTO open FROM pg_attribute a
            WHERE a.attrelid = format('mill.%I', kept.name)::regclass AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attname <> ALL (kept.from_all || kept.from_viewers);
        EXECUTE format('REVOKE SELECT ON mill.%I FROM mill_viewer', kept.name);
        EXECUTE format('GRANT SELECT (%s) ON mill.%I TO mill_viewer', open, kept.name);
        IF kept.from_viewers <> '{}' THEN
            EXECUTE format('GRANT SELECT (%s) ON mill.%I TO mill_operator',
                array_to_string(kept.from_viewers, ', '), kept.name);
        END IF;
    END LOOP;
END
$$;

COMMIT;
