-- One hour of a warehouse's history, for the screens and the screenshots of the documentation.
CREATE TABLE orders (id bigint PRIMARY KEY, placed_at timestamptz NOT NULL, amount numeric NOT NULL);
INSERT INTO orders SELECT n, now() - n * interval '1 minute', (n * 7919 % 10000) / 100.0 FROM generate_series(1,
    1000) AS n;
CREATE MATERIALIZED VIEW orders_by_day AS
    SELECT placed_at::date AS day, count(*) AS orders, sum(amount) AS amount FROM orders GROUP BY 1;
CREATE TABLE revenue (day date, amount numeric);
CREATE TABLE events (day date, events bigint);
CREATE TABLE stock (item bigint, pieces bigint);
CREATE TABLE deliveries (what text PRIMARY KEY);
CREATE FUNCTION delivered(wanted text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
    IF NOT EXISTS (SELECT FROM deliveries WHERE what = wanted) THEN
        RAISE 'no % has been delivered', wanted;
    END IF;
    RETURN true;
END $$;
CREATE TABLE inbox (arrived_at timestamptz DEFAULT now(), line text);

SELECT mill.set_group('warehouse', 'loads and their summaries', max_running => 4);
SELECT mill.set_max_running('queue', 'reports', 1);
CREATE PROCEDURE nightly() LANGUAGE sql AS 'DELETE FROM events WHERE day < current_date - 400';
COMMENT ON PROCEDURE nightly() IS 'Removes what nobody needs. @daily(03:15, days: weekdays) @retry(max_attempts: 3)';

SELECT mill.set_schedule('arrivals', 'trigger(table: public.inbox, rows: 100)', 'CALL nightly()',
    task => '{"queue": "etl"}');
SELECT mill.set_schedule('hourly orders', 'every(1 hour, zone: Europe/Berlin)', 'SELECT count(*) FROM events',
    task => '{"queue": "etl"}');

-- Ended within the last hour, or since midnight if shorter: history has one partition per day.
INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, attempt, outcome,
    priority, final, queue, name, sqlstate, message,
    rows, statement)
SELECT s.ended, nextval('mill.tasks_id_seq'), s.due, s.due, s.due + wait, 1,
    CASE WHEN s.fails THEN 'failed' ELSE 'succeeded' END::mill.outcome, 'normal', true, k.queue, k.name,
        CASE WHEN s.fails THEN '22012' END,
    CASE WHEN s.fails THEN 'division by zero' END, k.rows, k.statement
FROM (VALUES
        ('etl', 'load orders', 2.2, 480, 'CALL load_orders($1::date)'),
        ('etl', 'merge customers', 3.1, 120, 'MERGE INTO customers USING changes USING (id) …'),
        ('reports', 'revenue by region', 6.4, 12, 'INSERT INTO revenue SELECT … FROM orders GROUP BY region'),
        ('default', 'refresh stock', 0.8, 1, 'REFRESH MATERIALIZED VIEW CONCURRENTLY stock')
    ) AS k (queue, name, seconds, rows, statement),
    generate_series(1, 900) AS n,
    LATERAL (SELECT (0.02 + (n * 37 % 100) / 150.0) * interval '1 second' AS wait,
        k.seconds * (0.4 + (n * 53 % 100) / 80.0) * interval '1 second' AS ran,
        k.queue = 'reports' AND n % 97 = 0 AS fails,
        now() - interval '1 minute' - (n + 8 * sin(n / 40.0)) * 0.063 * interval '1 minute' AS finished_at) AS r,
    LATERAL (SELECT r.finished_at AS ended, r.finished_at - r.ran - r.wait AS due, r.fails) AS s
WHERE s.ended > date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
ORDER BY s.ended;

-- Scheduled tasks, and tasks that block each other.
SELECT mill.enqueue('VACUUM (ANALYZE) orders', name => 'vacuum orders', mode => 'autocommit', queue => 'maintenance',
    due_at => now() + interval '8 hours');
