-- Statements that cannot run in a transaction block: executed at least once instead of exactly once.
CREATE SCHEMA IF NOT EXISTS sample_autocommit;
GRANT USAGE, CREATE ON SCHEMA sample_autocommit TO PUBLIC;

CREATE OR REPLACE PROCEDURE sample_in_batches() LANGUAGE plpgsql AS $$
BEGIN
    FOR batch IN 0..9 LOOP
        UPDATE sample_autocommit.big SET n = n WHERE n BETWEEN batch * 1000 + 1 AND (batch + 1) * 1000;
        COMMIT;
    END LOOP;
END
$$;

-- VACUUM and CREATE INDEX require the owner of the table. Therefore a task creates the table, and
-- enqueues the others in the same transaction.
SELECT mill.enqueue($task$
    CREATE TABLE IF NOT EXISTS sample_autocommit.big AS SELECT n FROM generate_series(1, 10000) AS n;
    SELECT mill.enqueue('VACUUM (ANALYZE) sample_autocommit.big', mode => 'autocommit');
    SELECT mill.enqueue('CREATE INDEX CONCURRENTLY IF NOT EXISTS big_n ON sample_autocommit.big (n)',
        mode => 'autocommit');
    SELECT mill.enqueue('CALL sample_in_batches()', mode => 'autocommit');
    -- Never started twice: if its end is not observed, the outcome is "unknown".
    SELECT mill.enqueue('VACUUM sample_autocommit.big', mode => 'autocommit', at_most_once => true);
$task$);
