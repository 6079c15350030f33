/* checker.install */
-- Tables written by the load, and read by the checker in addition to pgmill's tables. Nothing in here
-- calls pgmill.
CREATE TABLE chaos.ops (
    op bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    what text NOT NULL CHECK (what IN ('enqueue', 'start_run', 'cancel', 'retry', 'restart_run')),
    answer text NOT NULL CHECK (answer IN ('ok', 'refused', 'unknown')),
    reply text,
    name text,
    key text,
    task bigint,
    run bigint
);
COMMENT ON TABLE chaos.ops IS 'Requests of the load with their replies. Copied in at the end, so that no crash loses them';
COMMENT ON COLUMN chaos.ops.answer IS 'unknown: the connection was lost before the reply, so the operation may have happened or not';
COMMENT ON COLUMN chaos.ops.reply IS 'Status word of the reply: for a cancel cancelled, requested, finished, …; for a retry retried, …';
COMMENT ON COLUMN chaos.ops.name IS 'enqueue: the name of the task; start_run: the parameter op of the run. Used once, or again with the same key';
CREATE INDEX ON chaos.ops (task);
CREATE INDEX ON chaos.ops (run);
CREATE INDEX ON chaos.ops (name);

-- Combines pgmill's history with the requests of the load: how often a task may end, and to which of its
-- lives each attempt belongs. A retry of an ended task starts a new life.
CREATE VIEW chaos.lives AS
    SELECT o.task, count(*) AS more FROM (
        SELECT o.task FROM chaos.ops o
            WHERE o.what = 'retry' AND (o.answer = 'unknown' OR o.reply = 'retried')
        UNION ALL
        SELECT t.task_id FROM chaos.ops o JOIN mill.run_tasks t ON t.run_id = o.run
            WHERE o.what = 'restart_run' AND o.answer <> 'refused' AND t.task_id IS NOT NULL
    ) AS o GROUP BY o.task;

CREATE VIEW chaos.history AS
    SELECT a.*, count(*) FILTER (WHERE a.final) OVER (PARTITION BY a.task_id
            ORDER BY a.finished_at, a.attempt ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS life,
        -- The first five conflicts do not use up an attempt, as documented, unless the server has interrupted others.
        a.outcome = 'failed' AND coalesce(a.sqlstate ~ '^(40001|40P01)', false) AS conflict,
        coalesce((a.options).at_most_once, false) AS at_most_once,
        coalesce((a.options).max_attempts, CASE WHEN (a.options).at_most_once THEN 1 ELSE 3 END) AS max_attempts
    FROM mill.attempts a;
