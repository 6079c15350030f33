-- A step and the enqueueing of the next step commit together.
CREATE TABLE IF NOT EXISTS sample_staging (n integer);
CREATE TABLE IF NOT EXISTS sample_target (n integer);
GRANT SELECT, INSERT, DELETE ON sample_staging, sample_target TO PUBLIC;

SELECT mill.enqueue($task$
    INSERT INTO sample_staging SELECT generate_series(1, 100);
    SELECT mill.enqueue('WITH moved AS (DELETE FROM sample_staging RETURNING n)
                         INSERT INTO sample_target SELECT n FROM moved', name => 'merge');
$task$, name => 'load');
