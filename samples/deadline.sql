-- A deadline, which reports a run that takes too long, and a timeout, which cancels it.
SELECT mill.set_job('sample slow load', '[{"name": "sample slow load", "statement": "SELECT pg_sleep(0.1)"}]',
    options => '{"expected_duration": "5 min", "deadline": "20 min", "run_timeout": "1 h"}');

-- A start can set another timeout than the job.
SELECT run_id FROM mill.start_run(ARRAY['sample slow load']);
SELECT run_id FROM mill.start_run(ARRAY['sample slow load'], options => '{"run_timeout": "30 min"}');

SELECT id, state, late_at - started_at AS deadline, timeout_at - started_at AS timeout, late_since, cancel_reason
    FROM mill.run_status ORDER BY id DESC LIMIT 2;
-- Runs in progress that have missed their deadline.
SELECT id, jobs, late_since, late_by FROM mill.late_runs;
-- Runs that were cancelled because of their timeout.
SELECT id, jobs, cancel_reason FROM mill.run_status WHERE cancel_reason IS NOT NULL;
