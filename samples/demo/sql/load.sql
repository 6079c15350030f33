CREATE UNLOGGED TABLE shop.staging_{batch} (LIKE shop.staging);
COPY shop.staging_{batch} FROM '{file}' (FORMAT csv, HEADER);
-- Simulates a slower disk: long enough for the worker to be killed after the rows are inserted and before
-- the commit.
SELECT pg_sleep({seconds});
-- The next step, enqueued in this transaction: it exists if and only if the rows do.
SELECT mill.enqueue($merge${merge}$merge$, name => 'merge batch {batch}', queue => 'merge');
