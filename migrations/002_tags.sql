-- Tags and metadata of tasks, attempts, jobs, runs and schedules. Without defaults and constraints, so that no table
-- is rewritten or scanned: the functions that write these columns check them.

ALTER TABLE mill.tasks ADD COLUMN tags text[], ADD COLUMN metadata jsonb;
ALTER TABLE mill.attempts ADD COLUMN tags text[], ADD COLUMN metadata jsonb;
ALTER TABLE mill.jobs ADD COLUMN tags text[], ADD COLUMN metadata jsonb;
ALTER TABLE mill.job_tasks ADD COLUMN tags text[], ADD COLUMN metadata jsonb;
ALTER TABLE mill.runs ADD COLUMN tags text[], ADD COLUMN metadata jsonb;
ALTER TABLE mill.run_tasks ADD COLUMN tags text[], ADD COLUMN metadata jsonb;
ALTER TABLE mill.schedules ADD COLUMN tags text[], ADD COLUMN metadata jsonb;
