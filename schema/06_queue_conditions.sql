-- Conditions of queues: workers claim nothing while one does not hold.
--
-- Workers do not evaluate the conditions when they claim. About once a second, the poll of one worker calls
-- mill.check_queue_conditions, which stores in mill.queues.held_back what the claim reads, as it reads
-- mill.queues.paused.
--
-- The server does not report how old the last replayed record of a standby is while the replay makes no progress. So
-- each check stores the current position in the WAL. The lag of a standby is the age of the oldest stored
-- position that it has not replayed.

CREATE UNLOGGED TABLE IF NOT EXISTS mill.wal_positions (
    written_at timestamptz PRIMARY KEY,
    lsn pg_lsn NOT NULL
);
COMMENT ON TABLE mill.wal_positions IS
    'Positions in the WAL with their times, about one per second while a queue has conditions, for '
    'mill.replication_lags';
GRANT SELECT ON mill.wal_positions TO mill_worker;

CREATE OR REPLACE FUNCTION mill.conditions_due() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM mill.queues q
            WHERE num_nonnulls(q.max_replication_lag, q.max_snapshot_age, q.max_active_sessions, q.held_back) > 0)
        -- A time in the future shows that the clock was set back.
        AND NOT EXISTS (SELECT FROM mill.wal_positions p
            WHERE p.written_at > now() - interval '1 second' AND p.written_at <= clock_timestamp())
$$;
COMMENT ON FUNCTION mill.conditions_due IS
    'Returns whether a queue has conditions, and the last check of all conditions is at least a second old';
GRANT EXECUTE ON FUNCTION mill.conditions_due TO mill_worker;

CREATE OR REPLACE FUNCTION mill.record_wal_position() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ahead CONSTANT interval := (SELECT max(p.written_at) FROM mill.wal_positions p) - clock_timestamp();
BEGIN
    IF ahead > '0' THEN
        -- The clock was set back. The positions keep their distances in time, so that a standby that lags still lags.
        WITH moved AS (DELETE FROM mill.wal_positions p RETURNING p.written_at, p.lsn)
        INSERT INTO mill.wal_positions (written_at, lsn) SELECT m.written_at - ahead, m.lsn FROM moved m
            ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO mill.wal_positions (written_at, lsn) VALUES (clock_timestamp(), pg_current_wal_flush_lsn())
        ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION mill.record_wal_position IS
    'Stores the current position in the WAL. If the clock was set back, moves the times of the other positions with it';

CREATE OR REPLACE FUNCTION mill.replication_lags() RETURNS TABLE (standby text, lag interval)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.application_name, coalesce(clock_timestamp() - (SELECT min(p.written_at) FROM mill.wal_positions p
        WHERE p.lsn > r.replay_lsn), '0')
    FROM pg_stat_replication r WHERE r.replay_lsn IS NOT NULL AND r.state IN ('catchup', 'streaming')
$$;
COMMENT ON FUNCTION mill.replication_lags IS
    'Connected standbys, and how long ago the primary wrote what a standby has not replayed, for mill.hold_reason';
GRANT EXECUTE ON FUNCTION mill.replication_lags TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.hold_reason(max_replication_lag interval, max_snapshot_age interval,
    max_active_sessions integer) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    worst record;
    sessions bigint;
BEGIN
    IF max_replication_lag IS NOT NULL THEN
        SELECT l.standby, l.lag INTO worst FROM mill.replication_lags() l
            WHERE l.lag > max_replication_lag ORDER BY l.lag DESC LIMIT 1;
        IF FOUND THEN
            RETURN format('the replication lag of standby %s is %s s, above %s s', worst.standby,
                floor(extract(epoch FROM worst.lag)), trim_scale(extract(epoch FROM max_replication_lag)::numeric));
        END IF;
    END IF;
    IF max_snapshot_age IS NOT NULL THEN
        SELECT s.holder, s.age INTO worst FROM (
            SELECT format('session %s of user %s', a.pid, a.usename) AS holder, clock_timestamp() - a.xact_start AS age
            FROM pg_stat_activity a
            WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
                AND num_nonnulls(a.backend_xmin, a.backend_xid) > 0
            UNION ALL
            SELECT format('prepared transaction %s', p.gid), clock_timestamp() - p.prepared
            FROM pg_prepared_xacts p WHERE p.database = current_database()) AS s
        WHERE s.age > max_snapshot_age ORDER BY s.age DESC LIMIT 1;
        IF FOUND THEN
            RETURN format('the snapshot of %s is %s s old, above %s s', worst.holder,
                floor(extract(epoch FROM worst.age)), trim_scale(extract(epoch FROM max_snapshot_age)::numeric));
        END IF;
    END IF;
    IF max_active_sessions IS NOT NULL THEN
        SELECT count(*) INTO sessions FROM pg_stat_activity a
            WHERE a.backend_type = 'client backend' AND a.state = 'active' AND a.pid <> pg_backend_pid();
        IF sessions > max_active_sessions THEN
            RETURN format('%s active, above %s', CASE sessions WHEN 1 THEN '1 session is'
                ELSE sessions || ' sessions are' END, max_active_sessions);
        END IF;
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION mill.hold_reason IS
    'Returns why a queue with these conditions is held back at this moment; null: all of its conditions hold';

CREATE OR REPLACE FUNCTION mill.check_queue_conditions() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended integer;
BEGIN
    -- Another worker checks at the same time.
    PERFORM FROM mill.locks l WHERE l.name = 'conditions' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    PERFORM mill.record_wal_position();
    DELETE FROM mill.wal_positions p WHERE p.written_at < now() - interval '1 minute'
        - (SELECT coalesce(max(q.max_replication_lag), '0') FROM mill.queues q);
    WITH checked AS MATERIALIZED (
        SELECT q.name, q.held_back IS NOT NULL AS was_held,
            mill.hold_reason(q.max_replication_lag, q.max_snapshot_age, q.max_active_sessions) AS reason
        FROM mill.queues q
        WHERE num_nonnulls(q.max_replication_lag, q.max_snapshot_age, q.max_active_sessions, q.held_back) > 0
        ORDER BY q.name FOR NO KEY UPDATE OF q SKIP LOCKED
    ), changed AS (
        UPDATE mill.queues q SET held_back = c.reason FROM checked c
        WHERE q.name = c.name AND q.held_back IS DISTINCT FROM c.reason
    )
    SELECT count(*) INTO ended FROM checked c WHERE c.was_held AND c.reason IS NULL;
    IF ended > 0 THEN
        PERFORM pg_notify('mill', 'sweep');
    END IF;
    RETURN ended;
END
$$;
COMMENT ON FUNCTION mill.check_queue_conditions IS
    'Evaluates the conditions of all queues, and stores which queues are held back. Returns the number of queues that '
    'are no longer held back';
GRANT EXECUTE ON FUNCTION mill.check_queue_conditions TO mill_worker;

CREATE OR REPLACE FUNCTION mill.set_queue_conditions(queue text, max_replication_lag interval DEFAULT NULL,
    max_snapshot_age interval DEFAULT NULL, max_active_sessions integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    before jsonb;
    reason text := mill.hold_reason(max_replication_lag, max_snapshot_age, max_active_sessions);
BEGIN
    SELECT jsonb_build_object('max_replication_lag', q.max_replication_lag, 'max_snapshot_age', q.max_snapshot_age,
        'max_active_sessions', q.max_active_sessions) INTO before FROM mill.queues q
        WHERE q.name = queue FOR NO KEY UPDATE;
    INSERT INTO mill.queues AS q (name, max_replication_lag, max_snapshot_age, max_active_sessions, held_back)
        VALUES (queue, max_replication_lag, max_snapshot_age, max_active_sessions, reason)
        ON CONFLICT (name) DO UPDATE SET max_replication_lag = excluded.max_replication_lag,
            max_snapshot_age = excluded.max_snapshot_age, max_active_sessions = excluded.max_active_sessions,
            held_back = excluded.held_back, changed_at = now();
    PERFORM mill.record_change('set_queue_conditions', 'queue ' || queue, before, jsonb_build_object(
        'max_replication_lag', max_replication_lag, 'max_snapshot_age', max_snapshot_age,
        'max_active_sessions', max_active_sessions));
    PERFORM pg_notify('mill', 'sweep');
END
$$;
COMMENT ON FUNCTION mill.set_queue_conditions IS
    'Sets the conditions under which workers claim from a queue; null: no such condition. While a condition does not '
    'hold, the queue is held back, as if it were paused. Workers check the conditions about once a second';
GRANT EXECUTE ON FUNCTION mill.set_queue_conditions TO mill_operator;
