-- Tasks enqueued from SQL: they exist if and only if your transaction commits.
CREATE TABLE IF NOT EXISTS sample_numbers (n integer);
GRANT INSERT ON sample_numbers TO PUBLIC;

BEGIN;
SELECT mill.enqueue('INSERT INTO sample_numbers VALUES (1)');
SELECT mill.enqueue('INSERT INTO sample_numbers VALUES (2)', name => 'two', priority => 'high');
SELECT mill.enqueue_many(array_agg(format('INSERT INTO sample_numbers VALUES (%s)', n)), queue => 'bulk')
FROM generate_series(3, 10) AS n;
COMMIT;
