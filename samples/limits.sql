-- Concurrency limits and rates that apply across the whole fleet.
DROP TABLE IF EXISTS sample_bills;
CREATE TABLE sample_bills (customer integer NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
GRANT INSERT ON sample_bills TO PUBLIC;

-- One task per customer at a time; different customers run concurrently.
SELECT mill.enqueue(format('INSERT INTO sample_bills VALUES (%s)', n % 3), queue => 'samples',
    concurrency_key => 'customer ' || n % 3)
FROM generate_series(1, 9) AS n;

-- A queue with a concurrency limit and a rate.
SELECT mill.set_max_running('queue', 'samples-mail', 2);
SELECT mill.set_rate('queue', 'samples-mail', 50, '1 second');
SELECT mill.enqueue_many(array_fill('SELECT 1'::text, ARRAY[20]), queue => 'samples-mail');

-- A group with low priority and at most four running tasks, which start only at night in Berlin, until
-- the active period is removed below.
SELECT mill.set_group('samples-nightly', description => 'Loads of the night', priority => 'low',
    max_running => 4);
SELECT mill.set_active_period('samples-nightly', '22:00', '06:00', 'Europe/Berlin');
SELECT mill.enqueue('SELECT 1', queue => 'samples', group_name => 'samples-nightly') AS id;
SELECT name, open, next_change_at FROM mill.group_status;
SELECT mill.set_active_period('samples-nightly', NULL, NULL);

SELECT kind, name, max_running, rate_starts, rate_period, running, waiting FROM mill.limit_status;
