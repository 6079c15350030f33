-- Roles: the owner of all objects, and the rights of programs and people.
--
-- mill_owner owns every object. mill_worker is for the control sessions of workers. mill_producer
-- enqueues tasks and starts runs. mill_viewer reads. mill_operator controls the fleet and has the
-- rights of mill_producer and mill_viewer. None of these roles can log in; the logins of people and
-- programs are made members of them.
--
-- Roles belong to the cluster and may exist already. The schema may exist, too: then the end of this file checks its
-- owner and its version. The files after this one run as mill_owner.

DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY
        ARRAY['mill_owner', 'mill_worker', 'mill_operator', 'mill_producer', 'mill_viewer']
    LOOP
        IF to_regrole(role_name) IS NULL THEN
            -- Roles belong to the cluster, so another database may be creating the same role at the same
            -- time. In that case CREATE ROLE waits for the other transaction and then fails, which is
            -- ignored.
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    IF NOT pg_has_role('mill_operator', 'mill_viewer', 'USAGE')
        OR NOT pg_has_role('mill_operator', 'mill_producer', 'USAGE')
    THEN
        GRANT mill_viewer, mill_producer TO mill_operator;
    END IF;
    -- A superuser can already act as every role. Since PostgreSQL 16, the creator of a role becomes a
    -- member that can grant the role but cannot act as it, and has to grant the role to itself.
    IF NOT pg_has_role(current_user, 'mill_owner',
        CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'SET' ELSE 'MEMBER' END)
    THEN
        BEGIN
            EXECUTE format('GRANT mill_owner TO %I', current_user);
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE EXCEPTION 'role "%" may not apply the schema', current_user
                USING ERRCODE = '42501',
                    HINT = 'Apply it as superuser, or as a role with CREATEROLE that is a member of mill_owner.';
        END;
    END IF;
    -- mill_worker needs these roles because the reclaimer finds and terminates the backends of a dead
    -- worker. mill_owner needs pg_read_all_stats because its functions show the wait events of the
    -- backends of running tasks. If the current role cannot grant these roles (PostgreSQL 16 and later
    -- require ADMIN OPTION), a warning is raised, and `pgmill doctor` reports the missing grants.
    IF NOT pg_has_role('mill_worker', 'pg_read_all_stats', 'USAGE')
        OR NOT pg_has_role('mill_worker', 'pg_signal_backend', 'USAGE')
        OR NOT pg_has_role('mill_owner', 'pg_read_all_stats', 'USAGE')
    THEN
        BEGIN
            GRANT pg_read_all_stats, pg_signal_backend TO mill_worker;
            GRANT pg_read_all_stats TO mill_owner;
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE WARNING 'could not grant pg_read_all_stats and pg_signal_backend'
                USING HINT = 'As superuser: GRANT pg_read_all_stats, pg_signal_backend TO '
                    'mill_worker; GRANT pg_read_all_stats TO mill_owner;';
        END;
    END IF;
END
$$;

CREATE SCHEMA IF NOT EXISTS mill AUTHORIZATION mill_owner;

DO $$
DECLARE
    owner name := (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'mill');
    own integer := current_setting('mill.version');
    found integer;
BEGIN
    -- Whoever may create schemas could have made this one, with views and triggers whose functions would run with the
    -- rights of the role that applies this file. SET ROLE protects from nothing, because a function can reset it.
    IF owner <> 'mill_owner' THEN
        RAISE EXCEPTION 'the schema mill belongs to role "%", not to mill_owner', owner USING ERRCODE = '55000',
            HINT = 'Drop the schema if pgmill has not created it, and then install pgmill.';
    END IF;
    IF to_regclass('mill.schema_version') IS NOT NULL THEN
        EXECUTE 'SELECT version FROM mill.schema_version' INTO found;
        IF found <> own THEN
            RAISE EXCEPTION 'this database holds version % of the schema, this file is version %', found, own
                USING HINT = CASE WHEN found < own
                    THEN format('Upgrade it with pgmill init, which applies schema/migrations/%s_*.sql to '
                        '%s_*.sql of your version of pgmill; pgmill init --dry-run prints them for psql.',
                        lpad((found + 1)::text, 3, '0'), lpad(own::text, 3, '0'))
                    ELSE 'Use the schema.sql of your version of pgmill.' END;
        END IF;
    END IF;
END
$$;
SET LOCAL ROLE mill_owner;
DO $$
BEGIN
    -- One session applies this file, or a migration, at a time.
    IF to_regclass('mill.schema_version') IS NOT NULL THEN
        LOCK TABLE mill.schema_version IN SHARE ROW EXCLUSIVE MODE;
    END IF;
END
$$;
COMMENT ON SCHEMA mill IS 'pgmill: a fleet of workers that run SQL tasks';

-- Default privileges of mill_owner, as a rule for all roles of a server sets them, would give other roles rights on
-- each object of this schema. They end here, and with them the rights that they have given.
DO $$
DECLARE
    rule record;
BEGIN
    FOR rule IN
        SELECT CASE d.defaclobjtype WHEN 'r' THEN 'TABLES' WHEN 'S' THEN 'SEQUENCES' WHEN 'f' THEN 'ROUTINES'
                WHEN 'T' THEN 'TYPES' WHEN 'n' THEN 'SCHEMAS' ELSE 'LARGE OBJECTS' END AS objects,
            coalesce('IN SCHEMA ' || quote_ident(n.nspname), '') AS place,
            CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END AS grantee,
            d.defaclnamespace IN (0, 'mill'::regnamespace) AND (r.rolname IN ('mill_worker', 'mill_operator',
                'mill_producer', 'mill_viewer')) IS NOT TRUE AS in_schema
        FROM pg_default_acl d LEFT JOIN pg_namespace n ON n.oid = d.defaclnamespace
            CROSS JOIN aclexplode(d.defaclacl) x LEFT JOIN pg_roles r ON r.oid = x.grantee
        -- PUBLIC may use each new routine and each new type anyway.
        WHERE d.defaclrole = 'mill_owner'::regrole AND x.grantee <> d.defaclrole
            AND NOT (x.grantee = 0 AND d.defaclobjtype IN ('f', 'T'))
        GROUP BY 1, 2, 3, 4
    LOOP
        EXECUTE format('ALTER DEFAULT PRIVILEGES %s REVOKE ALL ON %s FROM %s', rule.place, rule.objects, rule.grantee);
        IF rule.in_schema AND rule.objects IN ('TABLES', 'SEQUENCES', 'ROUTINES') THEN
            EXECUTE format('REVOKE ALL ON ALL %s IN SCHEMA mill FROM %s', rule.objects, rule.grantee);
        ELSIF rule.in_schema AND rule.objects = 'SCHEMAS' THEN
            EXECUTE format('REVOKE ALL ON SCHEMA mill FROM %s', rule.grantee);
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION mill.membership_rights() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END
$$;
COMMENT ON FUNCTION mill.membership_rights IS
    'Returns the argument of pg_has_role with which it finds out whether a role may use the rights of another one: it '
    'has them (INHERIT), or can assume them (SET). Since PostgreSQL 16, a membership may give neither';
GRANT EXECUTE ON FUNCTION mill.membership_rights TO mill_producer, mill_viewer;

CREATE OR REPLACE FUNCTION mill.may_act_as(role oid, allowed text[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    -- Thousands of roles may be allowed, and pg_has_role is slow: it is asked about the roles that can be the answer.
    WITH RECURSIVE candidate (oid) AS (
        SELECT may_act_as.role UNION SELECT 'pg_database_owner'::regrole
        UNION SELECT m.roleid FROM candidate c JOIN pg_auth_members m ON m.member = c.oid
    )
    SELECT EXISTS (SELECT FROM candidate c JOIN pg_roles r ON r.oid = c.oid
            WHERE r.rolname::text = ANY (allowed) AND pg_has_role(may_act_as.role, r.oid, mill.membership_rights()))
        OR EXISTS (SELECT FROM pg_roles u JOIN pg_roles r ON r.rolname::text = ANY (allowed)
            WHERE u.oid = may_act_as.role AND u.rolsuper)
$$;
COMMENT ON FUNCTION mill.may_act_as IS
    'Returns whether a role is one of these roles, or may use the rights of one of them: profiles.allowed';
GRANT EXECUTE ON FUNCTION mill.may_act_as TO mill_producer, mill_viewer;
