-- Settings of the fleet, version of the schema, and audit of actions.
--
-- Also decides whether the current user may read statements.
--
-- An action and its audit row commit together or not at all. Only functions of mill_owner write to
-- mill.audit.

CREATE TABLE IF NOT EXISTS mill.schema_version (
    version integer NOT NULL,
    min_compatible_version integer NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    CONSTRAINT compatible_with_itself CHECK (min_compatible_version <= version)
);
COMMENT ON TABLE mill.schema_version IS
    'Version of this schema, one row. Programs refuse to work with an incompatible version';
COMMENT ON COLUMN mill.schema_version.min_compatible_version IS
    'Oldest compatible version. Programs that were built for an older version of the schema refuse to use this schema';
INSERT INTO mill.schema_version (version, min_compatible_version)
    VALUES (current_setting('mill.version')::integer, current_setting('mill.min_compatible_version')::integer)
    ON CONFLICT DO NOTHING;
GRANT SELECT ON mill.schema_version TO mill_worker, mill_producer;

CREATE TABLE IF NOT EXISTS mill.settings (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    statement_limit_bytes integer NOT NULL DEFAULT 16777216
        CHECK (statement_limit_bytes BETWEEN 1 AND 536870912),
    default_group text,
    max_crashes integer NOT NULL DEFAULT 5 CHECK (max_crashes BETWEEN 1 AND 100),
    reserved_capacity mill.reserved_capacity NOT NULL DEFAULT 'none',
    backlog_wait interval NOT NULL DEFAULT '5 minutes' CHECK (backlog_wait > '0'),
    slow_factor double precision NOT NULL DEFAULT 4 CHECK (slow_factor BETWEEN 1 AND 1000000),
    history_retention interval NOT NULL DEFAULT '30 days'
        CHECK (history_retention >= '1 day'),
    schedule_log_retention interval NOT NULL DEFAULT '30 days'
        CHECK (schedule_log_retention >= '1 day'),
    audit_retention interval NOT NULL DEFAULT '365 days'
        CHECK (audit_retention >= '1 day'),
    declaring_roles text[] NOT NULL DEFAULT '{}',
    hide_statements boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE mill.settings IS 'Settings of the whole fleet, one row. Change them with UPDATE mill.settings SET …';
COMMENT ON COLUMN mill.settings.statement_limit_bytes IS
    'Maximum size of a statement in bytes. Enqueue refuses longer statements';
COMMENT ON COLUMN mill.settings.history_retention IS
    'Age at which attempts are deleted, by dropping whole daily partitions';
COMMENT ON COLUMN mill.settings.schedule_log_retention IS
    'Age at which rows of mill.schedule_log are deleted, a few thousand at a time, and removed schedules without runs';
COMMENT ON COLUMN mill.settings.audit_retention IS
    'Age at which rows of mill.audit are deleted, a few ten thousand per hour';
COMMENT ON COLUMN mill.settings.declaring_roles IS
    'Roles whose procedures may declare schedules in their comments, in addition to superusers and members of '
    'mill_operator. The code of these procedures runs as the task login';
COMMENT ON COLUMN mill.settings.hide_statements IS
    'Whether mill_viewer is denied access to statements, parameters, results, notices and messages';
COMMENT ON COLUMN mill.settings.max_crashes IS
    'A task ends as lost when the worker of this many of its attempts has died, or the server has crashed this many '
    'times while no other task could be the cause';
COMMENT ON COLUMN mill.settings.reserved_capacity IS
    'Share of the fleet''s readers that run only tasks of priority reserved, see mill.set_reserved_capacity';
COMMENT ON COLUMN mill.settings.backlog_wait IS
    'Wait from which the oldest waiting task of a queue or of a limit is reported as a problem';
COMMENT ON COLUMN mill.settings.slow_factor IS
    'A task or run is slow if it has taken this many times its usual duration, see mill.slow_tasks and mill.slow_runs';
COMMENT ON COLUMN mill.settings.default_group IS
    'Group of new tasks that are given no group, see mill.set_default_group; null: none';
INSERT INTO mill.settings DEFAULT VALUES ON CONFLICT DO NOTHING;
GRANT SELECT ON mill.settings TO mill_worker, mill_producer;
GRANT UPDATE ON mill.settings TO mill_operator;

-- Operator functions insert their audit row themselves, in the transaction of the action. So an action
-- from psql is recorded like any other, and an action that is rolled back leaves no row.
CREATE TABLE IF NOT EXISTS mill.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    login text NOT NULL DEFAULT session_user,
    role text DEFAULT nullif(current_setting('role'), 'none'),
    actor text DEFAULT left(nullif(current_setting('mill.actor', true), ''), 200),
    application text DEFAULT nullif(current_setting('application_name'), ''),
    action text NOT NULL,
    subject text NOT NULL,
    detail jsonb
);
COMMENT ON TABLE mill.audit IS
    'One row per action of an operator, and per run that timed out. Rows are never updated. Workers delete rows older '
    'than settings.audit_retention';
COMMENT ON COLUMN mill.audit.login IS 'Login of the session, as authenticated by the database';
COMMENT ON COLUMN mill.audit.role IS 'Role that the session had assumed with SET ROLE; null if none';
COMMENT ON COLUMN mill.audit.actor IS
    'Person on whose behalf a program acts, from SET mill.actor. Claimed by the program and not verified';
COMMENT ON COLUMN mill.audit.action IS
    'Name of the function of schema mill that was called. For a direct change of mill.settings: update_settings';
COMMENT ON COLUMN mill.audit.detail IS
    'Arguments or effect of the action. A changed setting has its old and its new value: '
    '{"weight": {"old": 1, "new": 7}}';
COMMENT ON COLUMN mill.audit.subject IS 'Object of the action, such as task 42, queue etl, run 12 or schedule nightly';
-- For queries of the actions on one subject.
CREATE INDEX IF NOT EXISTS audit_subject ON mill.audit (subject, id);

CREATE OR REPLACE FUNCTION mill.record_audit(action text, subject text, detail jsonb DEFAULT NULL) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO mill.audit (action, subject, detail) VALUES (action, subject, nullif(detail, '{}'))
$$;
COMMENT ON FUNCTION mill.record_audit IS
    'Appends a row to mill.audit. Operator functions call it. No role may execute it directly, so audit rows cannot '
    'be forged';

CREATE OR REPLACE FUNCTION mill.record_change(action text, subject text, before jsonb, after jsonb) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.record_audit(action, subject, (SELECT jsonb_object_agg(n.key,
            CASE WHEN before IS NOT NULL AND n.value <> coalesce(before->n.key, 'null')
                THEN jsonb_build_object('old', before->n.key, 'new', n.value) ELSE n.value END)
        FROM jsonb_each(after) AS n))
$$;
COMMENT ON FUNCTION mill.record_change IS
    'Appends a row to mill.audit for these settings. A changed setting is recorded as {"old", "new"}, any other '
    'setting as its value. before null: the object is new';

CREATE OR REPLACE FUNCTION mill.audit_settings() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF new.default_group IS DISTINCT FROM old.default_group AND new.default_group IS NOT NULL THEN
        PERFORM mill.lock_group(new.default_group);
    END IF;
    -- The server cannot compute the time so long ago, so mill.prune would fail, and delete nothing any more.
    IF greatest(new.history_retention, new.schedule_log_retention, new.audit_retention) > '1000 years' THEN
        RAISE EXCEPTION 'a retention exceeds 1000 years' USING ERRCODE = '22023',
            HINT = 'To delete nothing, set ''1000 years''.';
    END IF;
    PERFORM mill.record_change('update_settings', 'settings', to_jsonb(old), (SELECT jsonb_object_agg(n.key, n.value)
        FROM jsonb_each(to_jsonb(new)) AS n WHERE n.value IS DISTINCT FROM to_jsonb(old)->n.key));
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mill.audit_settings IS
    'Trigger of mill.settings: records the changed settings, with their old and new values, in mill.audit. Raises an '
    'error if the default group does not exist, or a retention exceeds 1000 years';
CREATE OR REPLACE TRIGGER audit_settings AFTER UPDATE ON mill.settings
    FOR EACH ROW WHEN (old.* IS DISTINCT FROM new.*) EXECUTE FUNCTION mill.audit_settings();

CREATE TABLE IF NOT EXISTS mill.locks (
    name text PRIMARY KEY,
    holder uuid,
    held_until timestamptz
);
COMMENT ON TABLE mill.locks IS
    'One row per kind of work that only one session of the fleet may do at a time. Sessions lock the row, or hold it '
    'for a while. Everybody may take an advisory lock, and so keep the fleet from its work; nobody else may lock these '
    'rows';
COMMENT ON COLUMN mill.locks.holder IS 'Worker that holds the row';
INSERT INTO mill.locks (name)
    VALUES ('history'), ('conditions'), ('target epochs'), ('schedule sync'), ('fleet metrics') ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION mill.lock(name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM mill.locks l WHERE l.name = lock.name FOR UPDATE;
END
$$;
COMMENT ON FUNCTION mill.lock IS 'Locks a row of mill.locks until the end of the transaction';
GRANT EXECUTE ON FUNCTION mill.lock TO mill_worker, mill_operator;

CREATE OR REPLACE FUNCTION mill.hold_lock(name text, holder uuid, held_for interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A time in the far future is from before the clock was set back.
    UPDATE mill.locks l SET holder = hold_lock.holder, held_until = clock_timestamp() + held_for
        WHERE l.name = hold_lock.name AND (l.holder = hold_lock.holder OR l.holder IS NULL
            OR l.held_until NOT BETWEEN clock_timestamp() AND clock_timestamp() + interval '1 hour');
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION mill.hold_lock IS
    'Holds a row of mill.locks for a worker, at most for an hour. Returns false if another worker holds it';
GRANT EXECUTE ON FUNCTION mill.hold_lock TO mill_worker;

CREATE OR REPLACE FUNCTION mill.check_size(what text, document jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    limit_bytes CONSTANT integer := (SELECT s.statement_limit_bytes FROM mill.settings s);
BEGIN
    -- The length of the text counts, because that is sent to workers and clients. It can be a thousand times the
    -- length of what is stored, and exceed what the server can send.
    IF octet_length(document::text) > limit_bytes THEN
        RAISE EXCEPTION 'the % % bytes long; the maximum is % bytes', what, octet_length(document::text), limit_bytes
            USING ERRCODE = '54000',
                HINT = 'Store bulk data in a table, or raise statement_limit_bytes in mill.settings.';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_size IS
    'Raises an error if the text of a document is longer than settings.statement_limit_bytes. what: subject and verb '
    'of the message, such as "params are"';

CREATE OR REPLACE FUNCTION mill.sees_statements() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT s.hide_statements OR pg_has_role('mill_operator', 'USAGE') OR pg_has_role('mill_owner', 'USAGE')
    FROM mill.settings s
$$;
COMMENT ON FUNCTION mill.sees_statements IS
    'Returns whether the current user may read statements, parameters, results and messages';
GRANT EXECUTE ON FUNCTION mill.sees_statements TO mill_viewer, mill_worker;

CREATE OR REPLACE FUNCTION mill.caller_sees_statements() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT s.hide_statements OR pg_has_role(c.name, 'mill_operator', 'USAGE')
        OR pg_has_role(c.name, 'mill_owner', 'USAGE')
    FROM mill.settings s
        CROSS JOIN (SELECT coalesce(nullif(current_setting('role'), 'none'), session_user)::name AS name) AS c
$$;
COMMENT ON FUNCTION mill.caller_sees_statements IS
    'As mill.sees_statements, for functions with the rights of mill_owner, in which the current user is not the '
    'caller: asks for the role that the session has assumed, or else for its login';
