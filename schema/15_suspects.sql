-- Suspects: tasks that ran when the server crashed.
--
-- They run one at a time, by which the one that crashes the server is found.
--
-- A crash interrupts all running tasks, and one of them may have caused it. So these tasks, the suspects, get one more
-- limit, which permits one of them at a time. A crash while a suspect holds the permit counts as a crash of this task
-- (tasks.crashes), and of no other. The task is no longer a suspect when an attempt has ended in any other way.

CREATE TABLE IF NOT EXISTS mill.server (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    timeline text NOT NULL DEFAULT substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8),
    crashed_at timestamptz
);
COMMENT ON TABLE mill.server IS 'What the fleet has last seen of the server';
COMMENT ON COLUMN mill.server.timeline IS
    'Timeline of the WAL. Another one after a failover, which is no crash that a task could cause again';
COMMENT ON COLUMN mill.server.crashed_at IS 'Time at which mill.detect_crash has found the last crash';
GRANT SELECT ON mill.server TO mill_worker, mill_viewer;

CREATE UNLOGGED TABLE IF NOT EXISTS mill.uptime (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);
COMMENT ON TABLE mill.uptime IS 'One row. Unlogged, so the table is empty after a crash of the server';
INSERT INTO mill.uptime SELECT WHERE NOT EXISTS (SELECT FROM mill.server) ON CONFLICT DO NOTHING;
INSERT INTO mill.server DEFAULT VALUES ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION mill.detect_crash() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    timeline_now text;
    timeline_before text;
    suspects bigint;
BEGIN
    IF EXISTS (SELECT FROM mill.uptime) THEN
        RETURN;
    END IF;
    -- Other sessions wait here until the suspects are marked.
    INSERT INTO mill.uptime DEFAULT VALUES ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    timeline_now := substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
    SELECT s.timeline INTO timeline_before FROM mill.server s FOR NO KEY UPDATE;
    IF timeline_before <> timeline_now THEN
        UPDATE mill.server SET timeline = timeline_now;
        RETURN;
    END IF;
    UPDATE mill.server SET crashed_at = clock_timestamp();
    INSERT INTO mill.limits (kind, name, max_running, explicit) VALUES ('crash', 'suspects', 1, true)
        ON CONFLICT DO NOTHING;
    SELECT l.id INTO suspects FROM mill.limits l WHERE l.kind = 'crash';
    -- No worker claims before it has registered, and each registration calls this function. So these tasks ran before
    -- the crash, and their sessions are gone. A task in another database is interrupted by crashes of that server.
    UPDATE mill.tasks t SET
            limits = CASE WHEN suspects = ANY (t.limits) THEN t.limits ELSE coalesce(t.limits, '{}') || suspects END,
            crashes = t.crashes + EXISTS (SELECT FROM mill.permits p WHERE p.task_id = t.id
                AND p.counts_until IS NULL AND p.limit_id = suspects)::integer
        WHERE t.id = ANY (ARRAY(SELECT r.id FROM mill.tasks r WHERE r.state = 'running' AND r.receipt IS NULL
            ORDER BY r.id FOR NO KEY UPDATE SKIP LOCKED));
END
$$;
COMMENT ON FUNCTION mill.detect_crash IS
    'Makes the tasks that ran when the server crashed suspects, once after each crash. Workers call it before they '
    'claim tasks; the functions that end or release an attempt which the crash may have interrupted do so, too';
GRANT EXECUTE ON FUNCTION mill.detect_crash TO mill_worker;

CREATE OR REPLACE FUNCTION mill.without_suspicion(limits bigint[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN nullif(array_remove(limits, (SELECT l.id FROM mill.limits l WHERE l.kind = 'crash')), '{}');
END
$$;
COMMENT ON FUNCTION mill.without_suspicion IS
    'Returns the limits of a task that is not suspected to crash the server';

CREATE OR REPLACE VIEW mill.crash_suspects AS
    SELECT t.id, t.queue, t.name, t.state, t.crashes
    FROM mill.limits l CROSS JOIN LATERAL (
        SELECT b.* FROM mill.tasks b WHERE b.state = 'blocked' AND b.blocking_limit_id = l.id
        UNION ALL
        SELECT r.* FROM mill.permits p JOIN mill.tasks r ON r.id = p.task_id
            WHERE p.limit_id = l.id AND p.counts_until IS NULL) AS t
    WHERE l.kind = 'crash';
COMMENT ON VIEW mill.crash_suspects IS
    'Tasks that ran when the server crashed, and wait until they may run alone among them, or do so. crashes: how '
    'often the server has crashed while only this task could be the cause, and how often its worker has died';
GRANT SELECT ON mill.crash_suspects TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.interruptions() RETURNS TABLE (
    attempts bigint, tasks bigint, since timestamptz, sqlstate text, message text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
BEGIN
    RETURN QUERY
        SELECT count(*), count(DISTINCT a.task_id), min(a.finished_at), (array_agg(a.sqlstate))[1],
            (array_agg(a.message))[1]
        FROM (SELECT v.task_id, v.finished_at, v.sqlstate, v.message FROM mill.visible_attempts v
            WHERE v.finished_at > now() - interval '10 minutes' AND v.outcome <> 'succeeded'
                AND v.outcome <> 'cancelled' AND v.outcome = 'interrupted'
            ORDER BY v.finished_at DESC LIMIT 1000) AS a;
EXCEPTION WHEN lock_not_available THEN
    -- What else is wrong is shown while the history is locked, too.
    RETURN QUERY SELECT 0::bigint, 0::bigint, NULL::timestamptz, NULL::text, NULL::text;
END
$$;
COMMENT ON FUNCTION mill.interruptions IS
    'Returns how many attempts of how many tasks the server has interrupted in the last ten minutes, up to 1000 '
    'attempts, since when, and the last error; zero while the history is locked';
GRANT EXECUTE ON FUNCTION mill.interruptions TO mill_viewer;
