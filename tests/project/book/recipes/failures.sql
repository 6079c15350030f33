-- recipe: Post failures to Slack
-- worker
[destinations.chat]
kind = "slack"
url = "{receiver}"
allow_private = true
-- after
SELECT mill.enqueue('SELECT 1/0', name => 'broken', max_attempts => 1);
-- received: broken
-- recipe: Report runs that are late
-- before
SELECT pg_advisory_lock(1);
CREATE FUNCTION load_all() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock(1)';
-- after
UPDATE mill.runs SET late_at = late_at - interval '3 h';
-- expect
SELECT count(*) = 1 AND bool_and(message->>'event' = 'late' AND job LIKE '%nightly%') FROM late_reports
-- after
SELECT pg_advisory_unlock(1);
-- expect
SELECT state = 'succeeded' FROM mill.runs
-- recipe: Cancel what blocks a task
-- before
CREATE TABLE stock (n integer);
INSERT INTO stock VALUES (1);
SELECT pg_advisory_lock(1);
SELECT mill.enqueue('UPDATE stock SET n = 2; SELECT pg_advisory_xact_lock(1)', name => 'blocker');
-- until
SELECT wait_event = 'advisory' FROM mill.running WHERE name = 'blocker'
-- before
SELECT mill.enqueue('UPDATE stock SET n = n + 10', name => 'victim');
-- until
SELECT cardinality(blocked_by) = 1 FROM mill.running WHERE name = 'victim'
-- expect
SELECT n = 11 AND (SELECT array_agg(name || ' ' || outcome ORDER BY name) = '{blocker cancelled,victim succeeded}'
    FROM mill.history) FROM stock
-- recipe: Find the slowest tasks
-- before
SELECT mill.enqueue('SELECT 1', name => 'load ' || n % 2) FROM generate_series(1, 10) AS n;
-- until
SELECT count(*) = 10 FROM mill.history
-- expect
SELECT plan IS NOT NULL FROM mill.history WHERE name = 'report'
-- expect
SELECT array_agg(name || ' ' || attempts ORDER BY name) @> '{load 0 5,load 1 5}' FROM mill.durations
-- recipe: Run failed tasks again after a repair
-- before
SELECT mill.enqueue('INSERT INTO repaired VALUES (1)', queue => 'reports');
SELECT mill.enqueue('SELECT 1/0', queue => 'reports', max_attempts => 1);
-- until
SELECT count(*) = 2 FROM mill.history WHERE final
-- before
CREATE TABLE repaired (n integer);
-- expect
SELECT count(*) = 1 AND (SELECT count(*) = 3 FROM mill.history) FROM repaired
-- recipe: Wait for a task in a script
-- before
CREATE FUNCTION close_day() RETURNS text LANGUAGE sql AS $$ SELECT 'done' $$;
-- printed: the day is closed
-- recipe: Restart a failed run where it failed
-- before
CREATE TABLE calls (task text);
SELECT mill.set_job('orders', '[{"name": "read", "statement": "INSERT INTO calls VALUES (''read'')"},
    {"name": "write", "after": ["read"], "statement": "INSERT INTO repaired VALUES (1)"},
    {"name": "report", "after": ["write"], "statement": "INSERT INTO calls VALUES (''report'')"}]');
SELECT mill.start_run('{orders}');
-- until
SELECT state = 'failed' FROM mill.runs
-- before
CREATE TABLE repaired (n integer);
-- expect
SELECT state = 'succeeded' AND (SELECT array_agg(task ORDER BY task) = '{read,report}' FROM calls) FROM mill.runs
