CREATE UNLOGGED TABLE shop.staging_{batch} (LIKE shop.staging);
COPY shop.staging_{batch} FROM '{file}' (FORMAT csv, HEADER);
-- Stands for a slower disk: long enough for the worker to be killed while the rows are in and nothing
-- is committed yet.
SELECT pg_sleep({seconds});
-- The next step, in this transaction: it comes to be if and only if the rows do.
SELECT mill.enqueue($merge${merge}$merge$, name => 'merge batch {batch}', queue => 'merge');
