-- Roles: mill_owner owns every object. mill_worker is for the control sessions of workers. mill_producer
-- enqueues tasks and starts runs, mill_viewer reads, mill_operator may do what these two may and controls the
-- fleet. None of them can log in; logins become members.
--
-- Roles belong to the cluster and may exist already. The following files run as mill_owner.

DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY
        ARRAY['mill_owner', 'mill_worker', 'mill_operator', 'mill_producer', 'mill_viewer']
    LOOP
        IF to_regrole(role_name) IS NULL THEN
            -- Roles belong to the cluster: another database may be creating them at the same time. Then
            -- CREATE ROLE waits for that transaction.
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    IF NOT pg_has_role('mill_operator', 'mill_viewer', 'MEMBER')
        OR NOT pg_has_role('mill_operator', 'mill_producer', 'MEMBER')
    THEN
        GRANT mill_viewer, mill_producer TO mill_operator;
    END IF;
    -- A superuser can already act as every role. Since PostgreSQL 16, the creator of a role becomes a
    -- member that can grant the role but cannot act as it.
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
    -- The reclaimer finds and terminates the backends of a dead worker; the owner's functions show
    -- the wait events of the backends of running tasks. If the current role cannot grant these roles
    -- (PostgreSQL 16 and later require ADMIN OPTION), a warning is raised, and `pgmill doctor` reports
    -- the missing grants.
    IF NOT pg_has_role('mill_worker', 'pg_read_all_stats', 'MEMBER')
        OR NOT pg_has_role('mill_worker', 'pg_signal_backend', 'MEMBER')
        OR NOT pg_has_role('mill_owner', 'pg_read_all_stats', 'MEMBER')
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
SET LOCAL ROLE mill_owner;
COMMENT ON SCHEMA mill IS 'pgmill: a fleet of workers that run SQL tasks';
