-- recipe: Ask a person before publishing
-- before
CREATE TABLE prices (price numeric, is_public boolean DEFAULT false);
INSERT INTO prices VALUES (100);
-- expect
SELECT count(*) = 1 FROM mill.approvals_needed WHERE task = 'publish'
-- expect
SELECT price = 110 AND NOT is_public FROM prices
-- after
SELECT mill.approve(max(id), 'publish') FROM mill.runs;
-- expect
SELECT is_public FROM prices
-- recipe: Clean up whatever happened
-- before
CREATE TABLE imported (n integer, share integer);
CREATE TABLE scratch AS SELECT generate_series(1, 5) AS n;
-- printed: the run failed, and scratch is empty
-- expect
SELECT NOT EXISTS (SELECT FROM scratch) AND NOT EXISTS (SELECT FROM imported)
    AND (SELECT state = 'upstream_failed' FROM mill.run_task_status WHERE name = 'check')
-- recipe: Run a procedure every night
-- before
CREATE TABLE statistics (at timestamptz, objects bigint);
-- expect
SELECT to_char(next_fire_at AT TIME ZONE 'Europe/Berlin', 'HH24:MI') = '03:15' FROM mill.schedule_status
-- after
SELECT mill.run_now('public.refresh_statistics/daily_03_15');
-- expect
SELECT count(*) = 1 AND max(objects) > 100 FROM statistics
-- recipe: Test a schedule before it is due
-- before
CREATE TABLE closings (at timestamptz);
-- printed: disabled
-- expect
SELECT count(*) = 1 FROM closings
-- after
SELECT mill.enable_schedule('closing');
-- expect
SELECT to_char(next_fire_at AT TIME ZONE 'America/New_York', 'ID HH24:MI') = '5 18:00'
    AND extract(day FROM next_fire_at AT TIME ZONE 'America/New_York') > 21 FROM mill.schedule_status
-- recipe: Chain jobs of two teams
-- before
CREATE TABLE done (task text, at timestamptz DEFAULT clock_timestamp());
-- expect
SELECT array_agg(task ORDER BY at) = '{orders,revenue}' FROM done
-- recipe: Run a task in another database
-- worker
[targets.dwh]
url = "{target}"
-- target
CREATE TABLE facts (n integer);
-- expect target
SELECT count(*) = 1 FROM facts WHERE n = 42
-- recipe: Enqueue from a trigger of a table
-- before
SELECT mill.pause('default');
CREATE TABLE payments (customer integer, amount numeric);
CREATE TABLE balances (customer integer, balance numeric);
CREATE FUNCTION recalculate(customer integer) RETURNS void LANGUAGE sql AS $$
    INSERT INTO balances SELECT $1, sum(amount) FROM payments p WHERE p.customer = $1
$$;
-- after
SELECT mill.resume('default');
-- expect
SELECT count(*) = 1 AND max(balance) = 5050 FROM balances
