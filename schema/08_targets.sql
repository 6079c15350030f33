-- Targets: other databases in which tasks run.
--
-- A target is a profile whose login connects to another database than the queue's. In that database,
-- the schema mill_target (crates/queue/src/receipt/schema.sql) holds a receipt of each task that has
-- succeeded there.
--
-- Effects and receipt commit together in the target. The queue records the end of the task afterwards. If it
-- is unknown whether an attempt has committed, a worker resolves the attempt: it writes a higher epoch into the
-- row of the receipt. The lock of this row decides. Either the receipt exists, or the attempt can no longer
-- commit.

CREATE TABLE IF NOT EXISTS mill.targets (
    name mill.profile_name PRIMARY KEY REFERENCES mill.profiles ON DELETE CASCADE,
    receipts_kept interval NOT NULL DEFAULT '7 days' CHECK (receipts_kept BETWEEN '1 hour' AND '10 years'),
    epoch bigint NOT NULL DEFAULT 0,
    checked_at timestamptz,
    restored_at timestamptz,
    restored_from bigint,
    max_replication_lag interval CHECK (max_replication_lag BETWEEN '5 seconds' AND '1 hour'),
    max_snapshot_age interval CHECK (max_snapshot_age >= '1 second'),
    max_active_sessions integer CHECK (max_active_sessions >= 0)
);
COMMENT ON TABLE mill.targets IS
    'Targets: profiles whose tasks run in another database. The connection settings are in the configuration of '
    'workers';
COMMENT ON COLUMN mill.targets.receipts_kept IS
    'Workers delete receipts that are older. A queue that is restored to an earlier time could run tasks again whose '
    'receipts are deleted';
COMMENT ON COLUMN mill.targets.epoch IS 'Highest epoch that the target has stored durably';
COMMENT ON COLUMN mill.targets.checked_at IS 'Time at which a worker last reached the target and compared the epochs';
COMMENT ON COLUMN mill.targets.restored_at IS
    'Time at which a worker found that the target has lost epochs that it had stored, because it was restored to an '
    'earlier time; null: never, or accepted by an operator';
COMMENT ON COLUMN mill.targets.restored_from IS 'The epoch that the target then had';
COMMENT ON COLUMN mill.targets.max_replication_lag IS
    'Workers claim only while no connected standby of the target is further behind; null: no such condition';
COMMENT ON COLUMN mill.targets.max_snapshot_age IS
    'Workers claim only while no transaction of the target has held its snapshot for longer; null: no such condition';
COMMENT ON COLUMN mill.targets.max_active_sessions IS
    'Workers claim only while at most this many sessions of the target''s server are active; null: no such condition';
REVOKE UPDATE ON mill.targets FROM mill_worker;
GRANT SELECT ON mill.targets TO mill_worker;

-- Every claim of a task with a target, and every resolution, gets a number of its own.
CREATE SEQUENCE IF NOT EXISTS mill.target_epochs;
COMMENT ON SEQUENCE mill.target_epochs IS 'Epochs: an attempt commits in its target only if its epoch is the highest';
REVOKE UPDATE ON SEQUENCE mill.target_epochs FROM mill_worker;
GRANT USAGE ON SEQUENCE mill.target_epochs TO mill_worker;

CREATE OR REPLACE FUNCTION mill.new_receipt(profile text) RETURNS uuid
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT gen_random_uuid() FROM mill.targets t WHERE t.name = profile
$$;
COMMENT ON FUNCTION mill.new_receipt IS
    'Returns the id under which the target stores the receipt of a new task; null if the profile is no target. It is '
    'random and not the id of the task, because ids come again after a restore';
GRANT EXECUTE ON FUNCTION mill.new_receipt TO mill_worker;

CREATE OR REPLACE FUNCTION mill.is_target(name text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM mill.targets t WHERE t.name = is_target.name)
$$;
COMMENT ON FUNCTION mill.is_target IS 'Returns whether there is a target of this name';
GRANT EXECUTE ON FUNCTION mill.is_target TO mill_producer;

CREATE OR REPLACE FUNCTION mill.target(name text) RETURNS uuid
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT mill.is_target(name) THEN
        RAISE EXCEPTION 'there is no target "%"', name USING ERRCODE = '22023',
            HINT = pg_catalog.format('A member of mill_owner can create it: pgmill target set %I', name);
    END IF;
    RETURN mill.profile(name);
END
$$;
COMMENT ON FUNCTION mill.target IS
    'Returns the key of a target, for the argument profile of mill.submit and mill.submit_many. Raises an error if '
    'the current user may not use it';
GRANT EXECUTE ON FUNCTION mill.target TO mill_producer;

CREATE OR REPLACE FUNCTION mill.set_target(name text, allowed text[] DEFAULT NULL, description text DEFAULT NULL,
    receipts_kept interval DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    used text;
BEGIN
    IF NOT EXISTS (SELECT FROM mill.targets t WHERE t.name = set_target.name) THEN
        used := mill.use_of_profile(set_target.name);
        IF used IS NOT NULL THEN
            RAISE EXCEPTION 'profile "%" is used by % and cannot become a target', name, used USING ERRCODE = '55000',
                HINT = 'Wait for its tasks and runs or cancel them; change or disable its jobs; change its '
                    'subscriptions; or use another name.';
        END IF;
    END IF;
    PERFORM mill.set_profile(set_target.name, set_target.allowed, set_target.description);
    INSERT INTO mill.targets AS t (name, receipts_kept)
        VALUES (set_target.name, coalesce(set_target.receipts_kept, '7 days'))
        ON CONFLICT (name) DO UPDATE SET receipts_kept = coalesce(set_target.receipts_kept, t.receipts_kept);
    PERFORM mill.record_audit('set_target', 'target ' || set_target.name, jsonb_strip_nulls(jsonb_build_object(
        'receipts_kept', set_target.receipts_kept)));
END
$$;
COMMENT ON FUNCTION mill.set_target IS
    'Creates or changes a target, and the profile of the same name as mill.set_profile does. Null arguments leave '
    'settings unchanged. mill.drop_profile removes it. For mill_owner only';

CREATE OR REPLACE FUNCTION mill.accept_restored_target(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.targets t SET restored_at = NULL, restored_from = NULL
        WHERE t.name = accept_restored_target.name AND t.restored_at IS NOT NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_audit('accept_restored_target', 'target ' || name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.accept_restored_target IS
    'Ends the problem that a target was restored to an earlier time. Returns whether there was this problem';
GRANT EXECUTE ON FUNCTION mill.accept_restored_target TO mill_operator;

CREATE OR REPLACE FUNCTION mill.raise_target_epoch(used bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A target is another system. A number that no fleet reaches must not use up the sequence.
    IF used > 1000000000000000 THEN
        RAISE EXCEPTION 'epoch % of a target is not plausible', used USING ERRCODE = '22023';
    END IF;
    -- Two callers must not lower what the other one has set.
    PERFORM mill.lock('target epochs');
    PERFORM setval('mill.target_epochs', used) FROM mill.target_epochs s WHERE s.last_value < used;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION mill.raise_target_epoch IS
    'Makes all future epochs higher than this one. A queue that was restored to an earlier time would otherwise use '
    'epochs again. Returns whether they were lower';
GRANT EXECUTE ON FUNCTION mill.raise_target_epoch TO mill_worker;

CREATE OR REPLACE FUNCTION mill.record_target_epoch(name text, confirmed bigint, before bigint, stored bigint)
RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE mill.targets t SET checked_at = clock_timestamp(), epoch = greatest(t.epoch, stored),
        restored_at = CASE WHEN before < confirmed THEN clock_timestamp() ELSE t.restored_at END,
        restored_from = CASE WHEN before < confirmed THEN before ELSE t.restored_from END
    WHERE t.name = record_target_epoch.name
$$;
COMMENT ON FUNCTION mill.record_target_epoch IS
    'Records that the target has stored an epoch durably. confirmed: targets.epoch when the worker began; before: the '
    'epoch that the target had until then. If before is lower, the target was restored to an earlier time';
GRANT EXECUTE ON FUNCTION mill.record_target_epoch TO mill_worker;

-- Conditions of targets ---------------------------------------------------------------------------
--
-- They are those of queues (06_queue_conditions.sql), evaluated in the target. About once a second, one worker that
-- reaches the target calls mill_target.check_conditions there, and stores the result here. The polls of workers read
-- it, so that the claim need not.

CREATE UNLOGGED TABLE IF NOT EXISTS mill.target_checks (
    name mill.profile_name PRIMARY KEY REFERENCES mill.targets ON DELETE CASCADE,
    begun_at timestamptz NOT NULL,
    held_back text
);
COMMENT ON TABLE mill.target_checks IS
    'Last checks of the conditions of targets. Unlogged: empty after a crash, until the next checks';
COMMENT ON COLUMN mill.target_checks.held_back IS
    'Which condition does not hold, so that workers claim no task of the target; null: every condition holds';
REVOKE INSERT, UPDATE, DELETE ON mill.target_checks FROM mill_worker;
GRANT SELECT ON mill.target_checks TO mill_worker;

CREATE OR REPLACE FUNCTION mill.targets_with_conditions(names text[]) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(t.name::text ORDER BY t.name), '{}')
    FROM mill.targets t LEFT JOIN mill.target_checks c ON c.name = t.name
    WHERE t.name = ANY (names)
        AND num_nonnulls(t.max_replication_lag, t.max_snapshot_age, t.max_active_sessions, c.held_back) > 0
$$;
COMMENT ON FUNCTION mill.targets_with_conditions IS
    'Returns those of these targets that have conditions or are still held back';
GRANT EXECUTE ON FUNCTION mill.targets_with_conditions TO mill_worker;

CREATE OR REPLACE FUNCTION mill.held_targets(names text[]) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(c.name::text ORDER BY c.name), '{}') FROM mill.target_checks c
    WHERE c.name = ANY (names) AND c.held_back IS NOT NULL
$$;
COMMENT ON FUNCTION mill.held_targets IS 'Returns those of these targets that are held back';
GRANT EXECUTE ON FUNCTION mill.held_targets TO mill_worker;

CREATE OR REPLACE FUNCTION mill.begin_target_check(name text)
RETURNS TABLE (max_replication_lag interval, max_snapshot_age interval, max_active_sessions integer)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH begun AS (
        INSERT INTO mill.target_checks AS c (name, begun_at) VALUES (begin_target_check.name, now())
            ON CONFLICT (name) DO UPDATE SET begun_at = excluded.begun_at
            -- A time in the future shows that the clock was set back.
            WHERE c.begun_at NOT BETWEEN clock_timestamp() - interval '1 second' AND clock_timestamp()
        RETURNING c.name
    )
    SELECT t.max_replication_lag, t.max_snapshot_age, t.max_active_sessions
    FROM begun b JOIN mill.targets t ON t.name = b.name
$$;
COMMENT ON FUNCTION mill.begin_target_check IS
    'Begins a check of a target for the whole fleet, and returns the conditions. Returns no row if another worker has '
    'begun one in the last second';
GRANT EXECUTE ON FUNCTION mill.begin_target_check TO mill_worker;

CREATE OR REPLACE FUNCTION mill.end_target_check(name text, reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.target_checks c SET held_back = reason
        WHERE c.name = end_target_check.name AND c.held_back IS DISTINCT FROM reason;
    IF FOUND AND reason IS NULL THEN
        PERFORM pg_notify('mill', 'sweep');
    END IF;
END
$$;
COMMENT ON FUNCTION mill.end_target_check IS
    'Stores which condition of a target does not hold; null: every condition holds';
GRANT EXECUTE ON FUNCTION mill.end_target_check TO mill_worker;

CREATE OR REPLACE FUNCTION mill.set_target_conditions(name text, max_replication_lag interval DEFAULT NULL,
    max_snapshot_age interval DEFAULT NULL, max_active_sessions integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    before jsonb;
BEGIN
    SELECT jsonb_build_object('max_replication_lag', t.max_replication_lag, 'max_snapshot_age', t.max_snapshot_age,
        'max_active_sessions', t.max_active_sessions) INTO before FROM mill.targets t
        WHERE t.name = set_target_conditions.name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no target "%"', name USING ERRCODE = '22023', HINT = 'pgmill target list';
    END IF;
    UPDATE mill.targets t SET max_replication_lag = set_target_conditions.max_replication_lag,
        max_snapshot_age = set_target_conditions.max_snapshot_age,
        max_active_sessions = set_target_conditions.max_active_sessions
        WHERE t.name = set_target_conditions.name;
    PERFORM mill.record_change('set_target_conditions', 'target ' || name, before, jsonb_build_object(
        'max_replication_lag', max_replication_lag, 'max_snapshot_age', max_snapshot_age,
        'max_active_sessions', max_active_sessions));
END
$$;
COMMENT ON FUNCTION mill.set_target_conditions IS
    'Sets the conditions under which workers claim tasks of a target; null: no such condition. While a condition does '
    'not hold, the target is held back: its tasks wait, and running ones continue. Workers check the conditions in the '
    'target about once a second';
GRANT EXECUTE ON FUNCTION mill.set_target_conditions TO mill_operator;
