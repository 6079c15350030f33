-- Many short tasks: a reader runs several of them in one transaction. Each task still has its own
-- history; a task that fails is rolled back and fails alone.
DROP TABLE IF EXISTS sample_hits;
CREATE TABLE sample_hits (n integer NOT NULL);
GRANT INSERT ON sample_hits TO PUBLIC;
SELECT mill.set_shared_commit('samples', '20 ms');

SELECT mill.enqueue_many(
    array_agg(format('INSERT INTO sample_hits VALUES (%s)', n) ORDER BY n), queue => 'samples')
FROM generate_series(1, 500) AS n;
SELECT mill.enqueue('SELECT 1 / 0', queue => 'samples', name => 'fatal', max_attempts => 1);

-- To return to one commit per task: SELECT mill.set_shared_commit('samples', NULL)
