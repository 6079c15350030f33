-- recipe: Refresh materialized views in the order of their dependencies
-- before
CREATE TABLE base (n integer);
CREATE MATERIALIZED VIEW daily AS SELECT sum(n) AS n FROM base;
CREATE MATERIALIZED VIEW a_week AS SELECT n * 7 AS n FROM daily;
INSERT INTO base VALUES (1), (2);
-- expect
SELECT (SELECT n FROM a_week) = 21 AND (SELECT state FROM mill.runs) = 'succeeded'
-- recipe: Load increments with a watermark
-- before
CREATE TABLE orders (id bigint, amount integer);
CREATE TABLE dwh_orders (LIKE orders);
INSERT INTO orders SELECT n, n FROM generate_series(1, 5) AS n;
-- expect
SELECT count(*) = 5 FROM dwh_orders
-- after
INSERT INTO orders VALUES (6, 6), (7, 7);
SELECT mill.enqueue(statement) FROM mill.history;
-- expect
SELECT count(*) = 7 AND count(DISTINCT id) = 7 AND (SELECT loaded_until = 7 FROM watermarks) FROM dwh_orders
-- recipe: Backfill a year
-- before
CREATE TABLE sales (day date, amount integer);
CREATE TABLE daily_totals (day date, total bigint);
INSERT INTO sales SELECT day, 10 FROM generate_series('2024-12-01'::date, '2026-01-31', '1 day') AS day;
CREATE FUNCTION load_sales(day date) RETURNS void LANGUAGE sql AS $$
    DELETE FROM daily_totals t WHERE t.day = load_sales.day;
    INSERT INTO daily_totals SELECT s.day, sum(amount) FROM sales s WHERE s.day = load_sales.day GROUP BY 1;
$$;
-- expect
SELECT count(*) = 365 AND min(day) = '2025-01-01' AND max(day) = '2025-12-31' AND bool_and(total = 10) FROM daily_totals
-- recipe: Merge a staging table when rows arrive
-- before
CREATE TABLE staging_prices (item text, price numeric, arrived_at timestamptz DEFAULT clock_timestamp());
CREATE TABLE prices (item text PRIMARY KEY, price numeric);
INSERT INTO prices VALUES ('item 1', 0), ('old', 1);
-- after
INSERT INTO staging_prices SELECT 'item ' || n % 100, n FROM generate_series(1, 600) AS n;
-- expect
SELECT count(*) = 101 AND bool_or(item = 'item 1' AND price = 501) AND NOT EXISTS (SELECT FROM staging_prices) FROM prices
-- recipe: Retry a flaky foreign server with increasing waits
-- before
CREATE TABLE local_rates (rate numeric);
CREATE SEQUENCE calls;
CREATE FUNCTION foreign_rates() RETURNS SETOF numeric LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('calls') < 3 THEN
        RAISE EXCEPTION 'could not connect to server' USING ERRCODE = '08001';
    END IF;
    RETURN NEXT 1.17;
END
$$;
-- expect
SELECT EXISTS (SELECT FROM mill.attempts WHERE attempt = 1 AND outcome = 'failed')
    AND NOT EXISTS (SELECT FROM mill.tasks WHERE attempt = 1 AND due_at > now() + interval '30 s')
-- after
SELECT mill.retry(id) FROM mill.tasks WHERE state = 'scheduled' AND attempt = 1;
-- expect
SELECT EXISTS (SELECT FROM mill.attempts WHERE attempt = 2 AND outcome = 'failed')
    AND NOT EXISTS (SELECT FROM mill.tasks WHERE attempt = 2 AND due_at > now() + interval '60 s')
-- after
SELECT mill.retry(id) FROM mill.tasks WHERE state = 'scheduled' AND attempt = 2;
-- expect
SELECT count(*) = 1 AND (SELECT array_agg(outcome::text ORDER BY attempt) = '{failed,failed,succeeded}' FROM mill.history)
FROM local_rates
-- recipe: Wait for a file or another precondition
-- before
CREATE TABLE deliveries (day date, loaded boolean DEFAULT false);
-- expect
SELECT state = 'scheduled' AND failures = 0 AND due_at > now() + interval '4 min' FROM mill.tasks
-- after
INSERT INTO deliveries VALUES ('2026-12-01');
SELECT mill.retry(id) FROM mill.tasks;
-- expect
SELECT loaded AND EXISTS (SELECT FROM mill.history WHERE outcome = 'succeeded' AND attempt = 1) FROM deliveries
-- recipe: Load parts in parallel, and sum them up at the end
-- before
CREATE TABLE sales (region text, amount numeric);
CREATE TABLE totals (region text, amount numeric);
INSERT INTO sales SELECT 'region ' || n % 5, n FROM generate_series(1, 100) AS n;
-- expect
SELECT count(*) = 6 AND bool_or(region = 'all' AND amount = 5050) FROM totals
