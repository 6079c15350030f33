-- ANALYZE of tables that hold rows and have no statistics.
--
-- After the installation, a restore, or pg_upgrade before 18.
--
-- The statements of the fleet do not depend on statistics, but the first autovacuum can be far away. This runs after
-- the transaction of the schema, because the fleet would wait for the locks of that transaction while samples are
-- read. A table with statistics is left alone, so another call costs nothing, and so is a table that another session
-- has locked, such as an autovacuum. An empty table is left alone, too: the planner expects ten pages in a table
-- that was never analyzed, and none in one that was empty.

DO $$
DECLARE
    found record;
BEGIN
    PERFORM set_config('role', 'mill_owner', true), set_config('client_min_messages', 'error', true),
        set_config('search_path', 'pg_catalog', true);
    FOR found IN SELECT c.relname AS name FROM pg_class c
        WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind = 'r' AND c.reltuples <> 0
            AND pg_relation_size(c.oid) > 0
            AND NOT EXISTS (SELECT FROM pg_stats s WHERE s.schemaname = 'mill' AND s.tablename = c.relname)
        ORDER BY c.relname
    LOOP
        EXECUTE format('ANALYZE (SKIP_LOCKED) mill.%I', found.name);
    END LOOP;
END
$$;
