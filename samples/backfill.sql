-- Runs of a schedule for instants in the past. Run with psql as a member of mill_operator.
DROP TABLE IF EXISTS sample_days;
CREATE TABLE sample_days (day date NOT NULL, loaded_at timestamptz NOT NULL DEFAULT now());
GRANT SELECT, INSERT ON sample_days TO PUBLIC;

-- The parameter fire_at is the instant of the run, also in a backfill.
SELECT mill.set_job('sample day', $$[{"name": "sample day", "params": [{"$param": "fire_at"}],
    "statement": "INSERT INTO sample_days (day) VALUES ($1::timestamptz::date)"}]$$);
SELECT mill.set_schedule('sample days', 'daily(00:00, zone: UTC)', jobs => '{sample day}');

-- One run for each of three days, at most two at a time. Days that have a run already are skipped, unless the
-- options have "again": true. Workers start the runs.
SELECT mill.backfill_schedule('sample days', '2026-01-01 00:00Z', '2026-01-03 00:00Z', '{"max_running": 2}') AS backfill;

SELECT state, next_at, fired, skipped, running, succeeded, error FROM mill.backfill_status ORDER BY id DESC LIMIT 1;
SELECT mill.pause_backfill(max(id)) FROM mill.backfill_status;
SELECT mill.resume_backfill(max(id)) FROM mill.backfill_status;
SELECT mill.enable_schedule('sample days', false);
