-- Running tasks, queues, the state of each task with the reason, and history.
SELECT id, name, running_duration, host, wait_event_type, wait_event, blocked_by FROM mill.running;
SELECT queue, pending, running, scheduled, oldest_pending_age, paused FROM mill.queue_status;
SELECT id, state, mill.why(id) FROM mill.tasks ORDER BY id LIMIT 10;
SELECT task_id, attempt, outcome, wait_duration, duration, run_id, rows, sqlstate, message FROM mill.history
ORDER BY finished_at DESC LIMIT 10;
