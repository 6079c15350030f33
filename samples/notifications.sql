-- Notifications: who is told what. Run with psql as a member of mill_operator.

-- Failed tasks of one queue to a NOTIFY channel: LISTEN etl_failures.
SELECT mill.set_subscription('etl failures', '{"events": ["task_failed"], "queue": "etl", "channel": "etl_failures"}');

-- A task that runs when a run of the job fails. $1 is the event.
CREATE TABLE IF NOT EXISTS failed_runs (run_id bigint, failed integer, at timestamptz DEFAULT now());
SELECT mill.set_subscription('note failures', jsonb_build_object('events', ARRAY['run_failed'], 'job', 'nightly',
    'statement', $$INSERT INTO failed_runs (run_id, failed)
        SELECT ($1::jsonb->>'run_id')::bigint, ($1::jsonb->>'failed')::integer$$));

-- Runs, at most 5 messages per hour, to the destination "chat" that the configuration of workers defines.
SELECT mill.set_subscription('runs', '{"events": ["run_failed", "run_recovered"], "destination": "chat",
    "rate_messages": 5, "rate_period": "1 hour"}');

-- Queues with a backlog.
SELECT mill.set_subscription('backlog', '{"events": ["queue_backlog"], "channel": "backlog", "min_pending": 1000,
    "min_age": "10 minutes"}');

SELECT mill.test_subscription('etl failures');
SELECT subscription, event, state, last_error FROM mill.visible_notifications ORDER BY id;
SELECT name, kind, pending, dead, last_error, workers FROM mill.subscription_status;

SELECT mill.remove_subscription(name)
    FROM unnest(ARRAY['etl failures', 'note failures', 'runs', 'backlog']) AS name;
DROP TABLE failed_runs;
