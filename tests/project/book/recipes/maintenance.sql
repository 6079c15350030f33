-- recipe: Vacuum the largest tables every night
-- before
CREATE TABLE big (n integer);
/* VACUUM would keep deleted rows for statements that began before the DELETE. Rows of an INSERT that was undone are
visible to none. */
DO $$ BEGIN INSERT INTO big SELECT generate_series(1, 1000); RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN NULL; END $$;
-- after
SELECT mill.run_now('nightly vacuum');
-- expect
SELECT EXISTS (SELECT FROM mill.history WHERE name = 'vacuum big' AND outcome = 'succeeded' AND queue = 'upkeep')
    AND pg_relation_size('big') = 0
-- recipe: Create partitions ahead
-- before
CREATE TABLE events (at timestamptz NOT NULL, n integer) PARTITION BY RANGE (at);
-- expect
SELECT count(*) = 4 FROM pg_inherits WHERE inhparent = 'events'::regclass
-- after
INSERT INTO events SELECT now() + n * interval '1 month', n FROM generate_series(0, 3) AS n;
-- expect
SELECT count(DISTINCT tableoid) = 4 FROM events
-- recipe: Delete old rows in batches
-- before
CREATE TABLE logs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz);
INSERT INTO logs (at) SELECT now() - interval '100 days' FROM generate_series(1, 25000);
INSERT INTO logs (at) SELECT now() FROM generate_series(1, 10);
-- expect
SELECT count(*) = 10 AND (SELECT count(*) = 4 FROM mill.history WHERE outcome = 'succeeded') FROM logs
-- recipe: Rebuild indexes at night, without blocking
-- before
CREATE TABLE stock (n integer PRIMARY KEY, m integer);
CREATE INDEX stock_m ON stock (m);
CREATE TABLE files AS SELECT relname, relfilenode FROM pg_class WHERE relname IN ('stock_pkey', 'stock_m');
-- after
SELECT mill.set_active_period('night', NULL, NULL);
-- expect
SELECT count(*) = 2 FROM pg_class c JOIN files f ON f.relname = c.relname AND f.relfilenode <> c.relfilenode
-- recipe: Keep the history of failures for years
-- before
SELECT mill.enqueue('SELECT 1/0', name => 'broken', max_attempts => 1);
-- until
SELECT count(*) = 1 FROM mill.history
-- after
SELECT mill.run_now('archive failures');
-- expect
SELECT count(*) = 1 AND bool_and(name = 'broken' AND sqlstate = '22012') FROM failure_archive
