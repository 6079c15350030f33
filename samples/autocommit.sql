-- Statements that cannot run in a transaction block: executed at least once instead of exactly once.
CREATE TABLE IF NOT EXISTS sample_big AS SELECT n FROM generate_series(1, 10000) AS n;

CREATE OR REPLACE PROCEDURE sample_in_batches() LANGUAGE plpgsql AS $$
BEGIN
    FOR batch IN 0..9 LOOP
        UPDATE sample_big SET n = n WHERE n BETWEEN batch * 1000 + 1 AND (batch + 1) * 1000;
        COMMIT;
    END LOOP;
END
$$;

SELECT mill.enqueue('VACUUM (ANALYZE) sample_big', mode => 'autocommit');
SELECT mill.enqueue('CREATE INDEX CONCURRENTLY IF NOT EXISTS sample_big_n ON sample_big (n)', mode => 'autocommit');
SELECT mill.enqueue('CALL sample_in_batches()', mode => 'autocommit');
-- Never started twice: if its end is not observed, the outcome is "unknown".
SELECT mill.enqueue('VACUUM sample_big', mode => 'autocommit', at_most_once => true);
