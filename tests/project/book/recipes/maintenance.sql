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
-- recipe: Move the jobs of pg_cron
-- before
CREATE SCHEMA cron;
CREATE TABLE done (n integer);
CREATE TABLE cron.job (jobid bigint, schedule text, command text, active boolean, jobname text);
INSERT INTO cron.job VALUES (1, '30 3 * * 6', 'VACUUM done', true, 'vacuum'),
    (2, '30 4 * * 6', 'INSERT INTO done VALUES (2)', true, NULL), (3, '0 0 * * *', 'SELECT 3', false, 'off');
-- expect
SELECT array_agg(name::text ORDER BY name) = '{"pg_cron 2",vacuum}'
    AND bool_or(name = 'vacuum' AND to_char(next_fire_at AT TIME ZONE 'UTC', 'ID HH24:MI') = '6 03:30')
FROM mill.schedule_status
-- after
SELECT mill.run_now(name) FROM mill.schedules;
-- expect
SELECT (SELECT count(*) = 1 FROM done) AND (SELECT count(*) = 2 FROM mill.history WHERE outcome = 'succeeded')
-- recipe: Keep the history of failures for years
-- before
SELECT mill.enqueue('SELECT 1/0', name => 'broken', max_attempts => 1);
-- until
SELECT count(*) = 1 FROM mill.history
-- after
SELECT mill.run_now('archive failures');
-- expect
SELECT count(*) = 1 AND bool_and(name = 'broken' AND sqlstate = '22012') FROM failure_archive
