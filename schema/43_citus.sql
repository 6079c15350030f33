-- Citus: exactly once for tasks that write distributed tables.
--
-- On a coordinator.
--
-- If a transaction has written to one data node only, Citus commits it there with a plain COMMIT, and then on
-- the coordinator. A crash of the coordinator in between would keep the effects of a task and lose its
-- completion. Citus uses PREPARE TRANSACTION instead if the transaction also writes to a table of the
-- coordinator that Citus manages. So on a coordinator mill.two_phase is such a table. A completion deletes the
-- task from mill.tasks, which fires a trigger, which deletes no row of mill.two_phase. Without Citus there is no
-- trigger, and nothing uses the table.

CREATE TABLE IF NOT EXISTS mill.two_phase (k integer PRIMARY KEY);
COMMENT ON TABLE mill.two_phase IS
    'Always empty. On a coordinator of Citus, Citus manages this table, and a statement on it makes a transaction '
    'commit in two phases';
GRANT SELECT ON mill.two_phase TO mill_worker;

CREATE OR REPLACE FUNCTION mill.require_two_phase() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM mill.two_phase p WHERE p.k = 0;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mill.require_two_phase IS
    'Trigger of mill.tasks on a coordinator of Citus: makes the transaction commit in two phases';

DO $$
BEGIN
    -- `pgmill doctor` applies this file under another name, in a transaction that is rolled back.
    IF current_setting('mill.copy', true) = 'on'
        OR NOT EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'citus')
    THEN
        RETURN;
    END IF;
    -- A data node has another group.
    IF EXISTS (SELECT FROM pg_dist_local_group g WHERE g.groupid <> 0) THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_dist_node n WHERE n.groupid = 0) THEN
        RAISE WARNING 'tasks that write distributed tables run at least once: the coordinator of Citus has no address'
            USING HINT = 'Run SELECT citus_set_coordinator_host(…), and then pgmill init again.';
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_dist_partition p WHERE p.logicalrelid = 'mill.two_phase'::regclass) THEN
        -- Citus connects to the nodes as the current role, and mill_owner cannot log in.
        RESET ROLE;
        PERFORM citus_add_local_table_to_metadata('mill.two_phase');
        SET LOCAL ROLE mill_owner;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = 'mill.tasks'::regclass AND g.tgname = 'require_two_phase')
    THEN
        CREATE TRIGGER require_two_phase AFTER DELETE ON mill.tasks
            FOR EACH STATEMENT EXECUTE FUNCTION mill.require_two_phase();
    END IF;
END
$$;
