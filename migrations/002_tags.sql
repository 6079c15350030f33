-- Options of tasks (tags, metadata, isolation level), tags and metadata of jobs, runs and schedules. Without defaults and
-- constraints, so that no table is rewritten or scanned: the functions that write these columns check them.

-- The value can be used only after the commit, so the functions compare it as text.
ALTER TYPE mill.expected ADD VALUE 'always';
CREATE TYPE mill.isolation AS ENUM ('read_committed', 'repeatable_read', 'serializable');
CREATE TYPE mill.task_options AS (tags text[], metadata jsonb, isolation mill.isolation);
ALTER TABLE mill.tasks ADD COLUMN options mill.task_options;
ALTER TABLE mill.attempts ADD COLUMN options mill.task_options;
ALTER TABLE mill.job_tasks ADD COLUMN options mill.task_options;
ALTER TABLE mill.run_tasks ADD COLUMN options mill.task_options;
ALTER TABLE mill.jobs ADD COLUMN tags text[], ADD COLUMN metadata jsonb;
ALTER TABLE mill.runs ADD COLUMN tags text[], ADD COLUMN metadata jsonb, ADD COLUMN restarted_at timestamptz;
ALTER TABLE mill.workers ADD COLUMN error text, ADD COLUMN error_since timestamptz;
DROP FUNCTION mill.reset_run_tasks(bigint, bigint[]);
DROP FUNCTION mill.fire_or_skip(mill.schedules, timestamptz, bigint, interval);
ALTER TABLE mill.schedules ADD COLUMN tags text[], ADD COLUMN metadata jsonb, ADD COLUMN queued_later timestamptz[];
