-- Prune: deletes what is older than its retention, or no longer needed.
--
-- Each part is a call and a transaction of its own for workers, so that none waits for another one and
-- no lock is held for long.
--
-- What counts is the time that the clock of the server shows. A clock that is wrong for a while must not delete
-- history, so a part that deletes by age first asks mill.clock_is_trusted.

CREATE OR REPLACE FUNCTION mill.clock_is_trusted() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE
    state mill.history_state;
BEGIN
    SELECT s.* INTO state FROM mill.history_state s;
    IF state.day <> current_date THEN
        -- While the fleet works, some worker calls this function every hour. A clock that has skipped a day is wrong,
        -- or the fleet was down: both are over when the clock has gone on for ten minutes from there. A clock that was
        -- set back is right again.
        UPDATE mill.history_state s SET day = current_date,
                trusted_from = CASE WHEN current_date > s.day + 1 THEN now() + interval '10 minutes'
                    WHEN current_date < s.day THEN now() ELSE s.trusted_from END
            WHERE s.day <> current_date;
        SELECT s.* INTO state FROM mill.history_state s;
    END IF;
    RETURN now() >= state.trusted_from;
END
$$;
COMMENT ON FUNCTION mill.clock_is_trusted IS
    'Returns whether rows may be deleted because of their age, and records the day. False for the first ten minutes '
    'after the clock has skipped a day';

CREATE OR REPLACE FUNCTION mill.prune_runs() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE
    oldest CONSTANT date := (SELECT (now() - s.history_retention)::date FROM mill.settings s);
    old_runs bigint[];
BEGIN
    IF NOT mill.clock_is_trusted() THEN
        RETURN 0;
    END IF;
    SELECT array_agg(r.id) INTO old_runs FROM (
        SELECT r.id FROM mill.runs r WHERE r.finished_at < oldest ORDER BY r.id LIMIT 1000
        FOR UPDATE SKIP LOCKED) AS r;
    DELETE FROM mill.run_edges e WHERE e.run_id = ANY (old_runs);
    DELETE FROM mill.run_tasks t WHERE t.run_id = ANY (old_runs);
    DELETE FROM mill.run_events e WHERE e.run_id = ANY (old_runs);
    DELETE FROM mill.runs r WHERE r.id = ANY (old_runs);
    RETURN coalesce(cardinality(old_runs), 0);
END
$$;
COMMENT ON FUNCTION mill.prune_runs IS
    'Deletes up to 1000 runs that finished before the days that settings.history_retention keeps, with their tasks. '
    'Returns the number of runs deleted. The caller repeats the call until it returns less than 1000';
GRANT EXECUTE ON FUNCTION mill.prune_runs TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune_schedule_log() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted integer;
    unused text[];
BEGIN
    IF NOT mill.clock_is_trusted() THEN
        RETURN 0;
    END IF;
    -- Ids are almost in chronological order, so only the lowest ids are examined.
    DELETE FROM mill.schedule_log l USING (SELECT o.id FROM mill.schedule_log o ORDER BY o.id LIMIT 10000) AS oldest,
            mill.settings s
        WHERE l.id = oldest.id AND l.logged_at < now() - s.schedule_log_retention;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    -- A run refers to its schedule, so the schedule stays as long as the last of its runs.
    DELETE FROM mill.schedules s WHERE s.id IN (SELECT x.id FROM mill.schedules x CROSS JOIN mill.settings t
        WHERE x.removed_at < now() - t.schedule_log_retention
            AND NOT EXISTS (SELECT FROM mill.runs r WHERE r.schedule_id = x.id)
        FOR UPDATE OF x SKIP LOCKED);
    DELETE FROM mill.backfills b USING mill.settings t
        WHERE NOT EXISTS (SELECT FROM mill.runs r WHERE r.backfill_id = b.id)
            AND (b.finished_at < now() - t.schedule_log_retention
                OR NOT EXISTS (SELECT FROM mill.schedules s WHERE s.id = b.schedule_id));
    SELECT array_agg(j.name) INTO unused FROM (SELECT x.name FROM mill.jobs x CROSS JOIN mill.settings t
        WHERE x.of_schedule AND x.disabled_at < now() - t.schedule_log_retention
            AND NOT EXISTS (SELECT FROM mill.schedules s WHERE x.name = ANY (s.jobs))
        FOR UPDATE OF x SKIP LOCKED) AS j;
    DELETE FROM mill.job_edges e WHERE e.job = ANY (unused);
    DELETE FROM mill.job_tasks t WHERE t.job = ANY (unused);
    DELETE FROM mill.jobs j WHERE j.name = ANY (unused);
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION mill.prune_schedule_log IS
    'Deletes rows older than settings.schedule_log_retention, up to 10000, and schedules that were removed before this '
    'time and have no run left, with their jobs and backfills. Returns the number of deleted rows of the log';
GRANT EXECUTE ON FUNCTION mill.prune_schedule_log TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune_idempotency_keys() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted integer;
BEGIN
    IF NOT mill.clock_is_trusted() THEN
        RETURN 0;
    END IF;
    DELETE FROM mill.idempotency_keys k WHERE k.ctid = ANY (ARRAY(SELECT o.ctid FROM mill.idempotency_keys o
        WHERE o.created_at < now() - interval '1 day' ORDER BY o.created_at LIMIT 10000 FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION mill.prune_idempotency_keys IS
    'Deletes up to 10000 idempotency keys that are older than a day. Returns their number';
GRANT EXECUTE ON FUNCTION mill.prune_idempotency_keys TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune_notifications() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted integer;
    orphans integer;
BEGIN
    IF NOT mill.clock_is_trusted() THEN
        RETURN 0;
    END IF;
    -- A disabled subscription, or one whose destination no worker has, attempts nothing.
    UPDATE mill.notifications n SET dead_at = clock_timestamp(),
            last_error = coalesce(n.last_error, 'no worker has sent the notification in time')
        WHERE n.id IN (SELECT x.id FROM mill.subscriptions s CROSS JOIN LATERAL (SELECT o.id FROM mill.notifications o
            WHERE o.subscription_id = s.id AND o.sent_at IS NULL AND o.dead_at IS NULL AND o.retry_until <= now()
            ORDER BY o.id LIMIT 10000) AS x)
            AND n.next_attempt_at <= now();
    DELETE FROM mill.notifications n WHERE n.id IN (SELECT x.id FROM mill.notifications x, mill.settings t
        WHERE (x.sent_at IS NOT NULL OR x.dead_at IS NOT NULL)
            AND coalesce(x.sent_at, x.dead_at) < now() - CASE WHEN x.sent_at IS NOT NULL THEN interval '1 day'
                ELSE t.history_retention END
        ORDER BY coalesce(x.sent_at, x.dead_at) LIMIT 10000);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    -- A transaction may insert a notification while its subscription is removed.
    DELETE FROM mill.notifications n WHERE n.id IN (SELECT x.id FROM mill.notifications x
        WHERE x.sent_at IS NULL AND x.dead_at IS NULL
            AND NOT EXISTS (SELECT FROM mill.subscriptions s WHERE s.id = x.subscription_id) LIMIT 10000);
    GET DIAGNOSTICS orphans = ROW_COUNT;
    RETURN deleted + orphans;
END
$$;
COMMENT ON FUNCTION mill.prune_notifications IS
    'Deletes delivered notifications after a day and dead ones after settings.history_retention, up to 10000 of each. '
    'Marks notifications as dead that were not attempted within three days. Returns the number of deleted rows';
GRANT EXECUTE ON FUNCTION mill.prune_notifications TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune_rows() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE
    deleted integer := 0;
    more integer;
BEGIN
    DELETE FROM mill.cancel_requests r
        WHERE NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = r.task_id);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    DELETE FROM mill.progress p
        WHERE NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = p.task_id AND t.state = 'running');
    GET DIAGNOSTICS more = ROW_COUNT;
    deleted := deleted + more;
    -- A permit counts for a minute at most after its task has ended.
    DELETE FROM mill.permits p
        WHERE p.counts_until < now() - interval '1 minute'
            OR p.counts_until IS NULL AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = p.task_id);
    GET DIAGNOSTICS more = ROW_COUNT;
    deleted := deleted + more;
    IF NOT mill.clock_is_trusted() THEN
        RETURN deleted;
    END IF;
    -- Ids are almost in chronological order, so it suffices to examine the lowest ids.
    DELETE FROM mill.audit a USING (SELECT o.id FROM mill.audit o ORDER BY o.id LIMIT 50000) AS first, mill.settings s
        WHERE a.id = first.id AND a.at < now() - s.audit_retention;
    GET DIAGNOSTICS more = ROW_COUNT;
    deleted := deleted + more;
    DELETE FROM mill.worker_starts s
        WHERE s.started_at < (SELECT (now() - x.history_retention)::date FROM mill.settings x)
            AND NOT EXISTS (SELECT FROM mill.workers w WHERE w.id = s.id);
    GET DIAGNOSTICS more = ROW_COUNT;
    RETURN deleted + more;
END
$$;
COMMENT ON FUNCTION mill.prune_rows IS
    'Deletes rows about tasks that have ended, old rows of the audit, and starts of workers that history no longer '
    'names. Returns their number';
GRANT EXECUTE ON FUNCTION mill.prune_rows TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune_limits() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    idle_limits bigint[];
    deleted integer;
BEGIN
    -- An enqueue locks its limits until its tasks are visible. So the second statement, which looks for tasks again,
    -- sees those that were not yet visible to the first. EXCEPT reads the tasks once. With NOT IN, the planner compares
    -- each limit with each task if it expects too many tasks for a hash table, as it does without statistics.
    idle_limits := ARRAY(SELECT l.id FROM mill.limits l WHERE l.id = ANY (ARRAY(
        SELECT i.id FROM mill.limits i
        WHERE (i.kind = 'group' OR i.kind = 'key' AND i.max_running = 1 AND i.rate_starts IS NULL AND NOT i.explicit)
            AND NOT EXISTS (SELECT FROM mill.permits p WHERE p.limit_id = i.id)
        EXCEPT SELECT unnest(t.limits) FROM mill.tasks t WHERE t.limits IS NOT NULL)) FOR UPDATE OF l SKIP LOCKED);
    DELETE FROM mill.limits l WHERE l.id = ANY (ARRAY(
        SELECT unnest(idle_limits) EXCEPT SELECT unnest(t.limits) FROM mill.tasks t WHERE t.limits IS NOT NULL));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION mill.prune_limits IS
    'Deletes default limits of concurrency keys that no task has, and limits of finished runs. Returns their number';
GRANT EXECUTE ON FUNCTION mill.prune_limits TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune_history(max_count integer DEFAULT 20, OUT dropped integer, OUT remaining integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
SET lock_timeout = '100ms' AS $$
DECLARE
    due name[];
BEGIN
    SELECT array_agg(c.relname ORDER BY c.relname) INTO due
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            CROSS JOIN mill.settings s
        WHERE i.inhparent = 'mill.attempts'::regclass AND c.relname ~ '^attempts_[0-9]{8}$'
            AND right(c.relname, 8)::date < (now() - s.history_retention)::date;
    dropped := 0;
    remaining := coalesce(cardinality(due), 0);
    IF remaining > 0 AND NOT mill.clock_is_trusted() THEN
        remaining := 0;
    END IF;
    -- A reader of history holds the partitions until its transaction ends. While this waits for such a reader, no task
    -- can complete, so it gives up soon. A transaction that drops many partitions needs many locks.
    WHILE remaining > 0 AND dropped < max_count LOOP
        EXECUTE format('DROP TABLE mill.%I', due[dropped + 1]);
        dropped := dropped + 1;
        remaining := remaining - 1;
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    dropped := 0;
    remaining := cardinality(due);
END
$$;
COMMENT ON FUNCTION mill.prune_history IS
    'Drops up to max_count partitions of mill.attempts that are older than settings.history_retention, the oldest '
    'first. Drops none if a session that reads history holds one of them. remaining: number of such partitions that '
    'are left';
GRANT EXECUTE ON FUNCTION mill.prune_history TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.prune_runs(), mill.prune_rows(), mill.prune_limits();
    -- Comes last, because no task can complete from here to the end of the transaction.
    RETURN (SELECT h.dropped FROM mill.prune_history() AS h);
END
$$;
COMMENT ON FUNCTION mill.prune IS
    'Does what workers do every hour: drops up to 20 partitions of mill.attempts older than '
    'settings.history_retention, and deletes up to 1000 runs, and other rows that are no longer needed. Returns the '
    'number of partitions dropped';
GRANT EXECUTE ON FUNCTION mill.prune TO mill_worker;
