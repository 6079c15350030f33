-- Permits: blocked <-> pending.
--
-- A task with limits is blocked until it holds a permit of each of its limits. A claim takes pending
-- tasks without counting anything, so tasks without limits have no overhead. A permit is granted under a
-- lock on the row of its limit. Counting the running tasks in each claim could not enforce a limit,
-- because concurrent claims do not see each other's tasks.
--
-- A permit ends in the transaction in which the task stops being pending or running, without that lock.
-- A grant locks limits in the order (kind, id), and locks tasks only with SKIP LOCKED.

CREATE TABLE IF NOT EXISTS mill.permits (
    limit_id bigint NOT NULL,
    task_id bigint NOT NULL,
    counts_until timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
-- A task can have several starts that count towards one limit, so no set of columns identifies a row.
ALTER TABLE mill.permits REPLICA IDENTITY FULL;
COMMENT ON TABLE mill.permits IS
    'Permits. A task has one row for each limit that has admitted it. For a limit with a rate, the row of an ended '
    'attempt remains as long as its start counts towards the rate';
COMMENT ON COLUMN mill.permits.counts_until IS
    'Null while the task holds the permit. After the end of the attempt: time until which its start counts towards '
    'the rate';
CREATE INDEX IF NOT EXISTS permits_limit ON mill.permits (limit_id);
CREATE INDEX IF NOT EXISTS permits_task ON mill.permits (task_id) WHERE counts_until IS NULL;

CREATE UNLOGGED TABLE IF NOT EXISTS mill.limit_reconciliation (
    at timestamptz NOT NULL,
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    pause interval NOT NULL DEFAULT '1 second'
);
COMMENT ON TABLE mill.limit_reconciliation IS
    'Time at which the fleet last reconciled all limits. Unlogged, so the table is empty after a crash of the server';
COMMENT ON COLUMN mill.limit_reconciliation.pause IS
    'Time from then until the next reconciliation: nine times as long as the last one took, but 1 to 10 seconds';

CREATE OR REPLACE FUNCTION mill.release_permits(task_ids bigint[], started_at timestamptz[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE mill.permits p
        SET counts_until = started_at[array_position(task_ids, p.task_id)] + l.window_length
        FROM mill.limits l
        WHERE p.task_id = ANY (task_ids) AND p.counts_until IS NULL AND l.id = p.limit_id
            AND started_at[array_position(task_ids, p.task_id)] + l.window_length > clock_timestamp();
    DELETE FROM mill.permits p WHERE p.task_id = ANY (task_ids) AND p.counts_until IS NULL;
END
$$;
COMMENT ON FUNCTION mill.release_permits IS
    'Releases the permits of tasks that are no longer pending or running. The start of such a task continues to count '
    'towards a rate until the window of the rate has passed. started_at: null for a task that never started';
GRANT EXECUTE ON FUNCTION mill.release_permits TO mill_worker;

CREATE OR REPLACE FUNCTION mill.await_limit(limit_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
BEGIN
    PERFORM FROM mill.limits l WHERE l.id = limit_id FOR NO KEY UPDATE;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION mill.await_limit IS
    'Locks the row of a limit that another session has locked. Returns false if it cannot get the lock within 50 ms, '
    'for example because a transaction that has changed the limit is still open. The caller holds the locks of other '
    'limits meanwhile';

CREATE OR REPLACE FUNCTION mill.on_hold(OUT queues text[], OUT targets text[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (SELECT array_agg(q.name::text) FROM mill.queues q WHERE q.paused OR q.held_back IS NOT NULL),
        (SELECT array_agg(c.name::text) FROM mill.target_checks c WHERE c.held_back IS NOT NULL)
$$;
COMMENT ON FUNCTION mill.on_hold IS
    'Returns the queues and the targets that are paused or held back; null if there are none. Their tasks get no '
    'permits, and mill.reconcile_limits revokes those that they have, because other tasks can use them';

-- The steps of mill.grant_permits have its settings and its search_path: setting them again in each step would make the
-- grant of a permit slower.
CREATE OR REPLACE FUNCTION mill.free_places(limit_id bigint, OUT free integer, OUT open_until timestamptz,
    OUT next_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
    at CONSTANT timestamptz := clock_timestamp();
    terms mill.effective_limits;
    period record;
BEGIN
    SELECT t.* INTO terms FROM mill.effective_limits t WHERE t.id = limit_id;
    IF NOT FOUND THEN
        -- The limit was removed before the caller could lock it.
        free := 0;
        RETURN;
    END IF;
    DELETE FROM mill.permits p WHERE p.limit_id = terms.id AND p.counts_until <= at;
    SELECT least(1000, terms.max_running - count(*) FILTER (WHERE p.counts_until IS NULL))
        INTO free FROM mill.permits p WHERE p.limit_id = terms.id;
    IF terms.window_starts IS NOT NULL THEN
        -- A start that counts for longer is from before the clock was set back, or before the rate was changed.
        UPDATE mill.permits p SET counts_until = at + terms.window_length
            WHERE p.limit_id = terms.id AND p.counts_until > at + terms.window_length;
        -- A permit of a task that has not started always counts; a start counts for one window.
        SELECT least(free, terms.window_starts - count(*) FILTER (WHERE s.until > at)),
            least(at + terms.window_length, min(s.until) FILTER (WHERE s.until > at))
            INTO free, next_at
            FROM (SELECT coalesce(p.counts_until, CASE WHEN t.state = 'running'
                    THEN t.claimed_at + terms.window_length ELSE 'infinity' END) AS until
                FROM mill.permits p LEFT JOIN mill.tasks t ON t.id = p.task_id
                WHERE p.limit_id = terms.id) AS s;
    END IF;
    SELECT a.open, a.until INTO period FROM mill.active_period(terms.opens, terms.closes, terms.zone, at) AS a;
    IF period.open THEN
        open_until := period.until;
    ELSE
        free := 0;
        next_at := least(next_at, period.until);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.free_places IS
    'Deletes the starts that no longer count towards a limit, and returns how many permits it can grant (free; up to '
    '1000, may be negative). The caller has locked the limit, so that no other session grants its permits. open_until: '
    'end of the active period; null: none. next_at: time at which a rate or an active period frees further permits; '
    'null: never';

CREATE OR REPLACE FUNCTION mill.pick_blocked(limit_id bigint, max_count integer) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    hold record;
BEGIN
    SELECT h.* INTO hold FROM mill.on_hold() AS h;
    RETURN ARRAY(SELECT head.id FROM (
            -- Orders the priorities at random, weighted, as the claim does.
            SELECT w.priority FROM mill.priorities w
            ORDER BY CASE WHEN w.weight > 0 THEN -ln(1 - random()) / w.weight ELSE 'Infinity' END
        ) AS ranked CROSS JOIN LATERAL (
            -- A search for a task that is not on hold reaches the Nth task with a probability of 1000 / N. So a task
            -- is found however many are before it, and an average search remains short.
            SELECT coalesce(CASE WHEN num_nonnulls(hold.queues, hold.targets) > 0 THEN (
                SELECT t.id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id = limit_id
                    AND t.priority >= ranked.priority AND t.priority <= ranked.priority
                ORDER BY t.priority, t.id OFFSET (1000 / (1 - random()))::bigint LIMIT 1) END,
                9223372036854775807) AS id
        ) AS horizon CROSS JOIN LATERAL (
            -- As in the claim, a range of one priority leaves only the index of blocked tasks. With an equation, the
            -- primary key would give the order too.
            SELECT t.id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id = limit_id
                AND t.priority >= ranked.priority AND t.priority <= ranked.priority AND t.id < horizon.id
                AND (t.queue = ANY (hold.queues)) IS NOT TRUE AND (t.run_as = ANY (hold.targets)) IS NOT TRUE
            ORDER BY t.priority, t.id LIMIT max_count FOR NO KEY UPDATE SKIP LOCKED
        ) AS head LIMIT max_count);
END
$$;
COMMENT ON FUNCTION mill.pick_blocked IS
    'Locks up to max_count tasks that wait for a permit of this limit, and returns their ids. Leaves out tasks that '
    'are on hold, and tasks that another session has locked';

CREATE OR REPLACE FUNCTION mill.give_permits(limit_id bigint, task_ids bigint[], open_until timestamptz,
    OUT passed integer, OUT onward bigint[])
LANGUAGE plpgsql AS $$
BEGIN
    WITH permitted AS (
        INSERT INTO mill.permits (limit_id, task_id) SELECT give_permits.limit_id, i FROM unnest(task_ids) AS i
    ), moved AS (
        UPDATE mill.tasks t SET
            blocking_limit_id = t.limits[array_position(t.limits, give_permits.limit_id) + 1],
            state = CASE WHEN t.limits[array_position(t.limits, give_permits.limit_id) + 1] IS NULL
                THEN 'pending'::mill.state ELSE 'blocked' END,
            start_by = coalesce(open_until, t.start_by)
        WHERE t.id = ANY (task_ids)
        RETURNING t.blocking_limit_id
    )
    SELECT count(*) FILTER (WHERE m.blocking_limit_id IS NULL), array_agg(DISTINCT m.blocking_limit_id)
            FILTER (WHERE m.blocking_limit_id IS NOT NULL)
        INTO passed, onward FROM moved m;
END
$$;
COMMENT ON FUNCTION mill.give_permits IS
    'Gives locked tasks a permit of this limit: blocked -> pending | blocked. passed: number of tasks that became '
    'pending. onward: limits of a later kind for which the others wait now. open_until: time until which the tasks '
    'have to start; null: no limit';

CREATE OR REPLACE FUNCTION mill.grant_permits(limit_ids bigint[], OUT granted integer, OUT next_in interval)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    kind_now mill.limit_kind;
    limit_id bigint;
    may_wait boolean := true;
    places record;
    next_at timestamptz;
    picked bigint[];
    given record;
BEGIN
    granted := 0;
    -- Asynchronous commit is safe here, as for a claim: WAL is written in order, so an effect of this
    -- permit survives a crash only if the permit does.
    PERFORM set_config('synchronous_commit', 'off', true);
    FOREACH kind_now IN ARRAY enum_range(NULL::mill.limit_kind) LOOP
        FOR limit_id IN SELECT l.id FROM mill.limits l
            WHERE l.id = ANY (limit_ids) AND l.kind = kind_now ORDER BY l.id
        LOOP
            -- The order leaves only the index of blocked tasks.
            CONTINUE WHEN (SELECT t.id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id = limit_id
                ORDER BY t.priority, t.id LIMIT 1) IS NULL;
            PERFORM FROM mill.limits l WHERE l.id = limit_id FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                -- Most often another session grants permits of this limit and is about to commit. One that keeps
                -- the lock delays the other limits only once; the next poll finds the tasks again.
                may_wait := may_wait AND mill.await_limit(limit_id);
                CONTINUE WHEN NOT may_wait;
            END IF;
            -- The lock excludes other sessions that grant permits, so each of the next statements sees their grants.
            places := mill.free_places(limit_id);
            next_at := least(next_at, places.next_at);
            CONTINUE WHEN places.free <= 0;
            picked := mill.pick_blocked(limit_id, places.free);
            CONTINUE WHEN picked = '{}';
            given := mill.give_permits(limit_id, picked, places.open_until);
            granted := granted + given.passed;
            -- These tasks now wait for limits of a later kind, which the outer loop has not reached yet.
            limit_ids := limit_ids || given.onward;
        END LOOP;
    END LOOP;
    next_in := next_at - clock_timestamp();
END
$$;
COMMENT ON FUNCTION mill.grant_permits IS
    'Grants the free permits of these limits, up to 1000 per limit. While queues or targets are on hold, a call '
    'reaches the Nth task of a limit and priority with a probability of 1000 / N. '
    'granted: number of tasks that became pending. '
    'next_in: time until a rate or an active period frees further permits';
GRANT EXECUTE ON FUNCTION mill.grant_permits TO mill_worker;

CREATE OR REPLACE FUNCTION mill.limits_waited_for(after_limit bigint, max_count integer) RETURNS SETOF bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    -- A loose index scan, one probe per limit.
    WITH RECURSIVE waited (id) AS (
        (SELECT t.blocking_limit_id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id > after_limit
         ORDER BY t.blocking_limit_id LIMIT 1)
        UNION ALL
        SELECT next.blocking_limit_id FROM waited w CROSS JOIN LATERAL (
            SELECT t.blocking_limit_id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id > w.id
            ORDER BY t.blocking_limit_id LIMIT 1) AS next
    )
    SELECT w.id FROM waited w LIMIT max_count
$$;
COMMENT ON FUNCTION mill.limits_waited_for IS
    'Returns the limits for which blocked tasks wait next, in the order of their ids. max_count: null for all';

-- Up to 1000 limits and those of up to 1000 tasks, because the call holds their locks until the end of the transaction.
CREATE OR REPLACE FUNCTION mill.grant_waiting_permits(after_limit bigint, OUT granted integer, OUT next_in interval,
    OUT last_limit bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    waited_for bigint[];
    missing bigint[];
    chains record;
BEGIN
    -- A filter, not a condition: without statistics, a scan of the index permits_task seems cheaper than a probe.
    SELECT CASE WHEN count(*) = 1000 THEN max(w.id) END, array_agg(w.id) FILTER (WHERE l.id IS NULL),
            array_agg(w.id) FILTER (WHERE l.id IS NOT NULL
            AND (l.max_running IS NULL OR l.max_running > (SELECT count(*) FILTER (WHERE p.counts_until IS NULL)
                FROM mill.permits p WHERE p.limit_id = w.id)))
        INTO last_limit, missing, waited_for
        FROM mill.limits_waited_for(after_limit, 1000) AS w (id) LEFT JOIN mill.effective_limits l ON l.id = w.id;
    SELECT c.* INTO chains FROM mill.renew_chains(missing) AS c;
    SELECT g.granted, g.next_in INTO granted, next_in
        FROM mill.grant_permits(coalesce(waited_for || chains.waited_for, '{}')) AS g;
    IF chains.renewed >= 1000 THEN
        last_limit := coalesce(last_limit, 0);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.grant_waiting_permits(bigint) IS
    'Calls mill.renew_chains, and mill.grant_permits for the limits after this one that have waiting tasks and free '
    'capacity. Checks up to 1000 limits with waiting tasks. last_limit: the last of them, for the next call; 0: the '
    'next call begins with the first limit; null: there are no more';
GRANT EXECUTE ON FUNCTION mill.grant_waiting_permits(bigint) TO mill_worker;

CREATE OR REPLACE FUNCTION mill.grant_waiting_permits(OUT granted integer, OUT next_in interval)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    checked bigint := 0;
    part record;
BEGIN
    granted := 0;
    WHILE checked IS NOT NULL LOOP
        SELECT g.* INTO part FROM mill.grant_waiting_permits(checked) AS g;
        granted := granted + part.granted;
        next_in := least(next_in, part.next_in);
        checked := part.last_limit;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.grant_waiting_permits() IS
    'Calls mill.grant_permits for every limit that has waiting tasks and free capacity';
GRANT EXECUTE ON FUNCTION mill.grant_waiting_permits() TO mill_worker;

-- The settings and the first CTE force a probe of permits_limit and lookups of tasks by primary key.
CREATE OR REPLACE FUNCTION mill.revoke_permits(limit_ids bigint[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    revoked bigint[];
BEGIN
    PERFORM FROM mill.limits l WHERE l.id = ANY (limit_ids) ORDER BY l.kind, l.id FOR NO KEY UPDATE;
    WITH granted AS MATERIALIZED (
        SELECT p.task_id, p.counts_until FROM mill.permits p WHERE p.limit_id = ANY (limit_ids)
    ), waiting AS MATERIALIZED (
        SELECT t.id FROM mill.tasks t JOIN granted g ON g.task_id = t.id
        -- A blocked task waits for a later limit of its chain, and does not return to these limits by itself.
        WHERE g.counts_until IS NULL AND t.state IN ('pending', 'blocked') ORDER BY t.id FOR NO KEY UPDATE OF t
    ), back AS (
        UPDATE mill.tasks t SET state = 'blocked', blocking_limit_id = t.limits[1], start_by = NULL
        FROM waiting WHERE t.id = waiting.id AND t.state IN ('pending', 'blocked') RETURNING t.id
    )
    SELECT array_agg(b.id) INTO revoked FROM back b;
    PERFORM mill.release_permits(revoked, NULL) WHERE revoked IS NOT NULL;
    RETURN coalesce(cardinality(revoked), 0);
END
$$;
COMMENT ON FUNCTION mill.revoke_permits IS
    'Makes tasks wait again that have a permit of these limits and have not started (pending, blocked -> blocked). '
    'Returns the number of tasks';

CREATE OR REPLACE FUNCTION mill.block_pending(queue text, group_name text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    slipped bigint[];
    task mill.tasks;
    chain bigint[];
    blocked integer := 0;
BEGIN
    -- Two statements, each with one index range. One statement with both conditions would scan the table.
    IF EXISTS (SELECT FROM mill.limits l
        WHERE l.kind = 'queue' AND l.name = block_pending.queue AND l.requires_permit)
    THEN
        SELECT array_agg(t.id) INTO slipped FROM mill.tasks t
            WHERE t.state = 'pending' AND t.queue = block_pending.queue
                AND NOT EXISTS (SELECT FROM mill.limits l WHERE l.id = ANY (t.limits) AND l.kind = 'queue');
    ELSIF EXISTS (SELECT FROM mill.groups g WHERE g.name = block_pending.group_name AND g.requires_permit) THEN
        SELECT array_agg(t.id) INTO slipped FROM mill.tasks t
            WHERE t.state = 'pending' AND t.group_name = block_pending.group_name
                AND NOT EXISTS (SELECT FROM mill.limits l WHERE l.id = ANY (t.limits) AND l.kind = 'group');
    END IF;
    FOR task IN SELECT t.* FROM mill.tasks t WHERE t.id = ANY (slipped) AND t.state = 'pending'
        ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        chain := mill.required_limits(task.queue, task.group_name, task.run_id, task.concurrency_key);
        CONTINUE WHEN chain IS NULL;
        PERFORM mill.release_permits(ARRAY[task.id], NULL) WHERE task.limits IS NOT NULL;
        UPDATE mill.tasks t SET state = 'blocked', limits = chain, blocking_limit_id = chain[1], start_by = NULL
            WHERE t.id = task.id;
        blocked := blocked + 1;
    END LOOP;
    RETURN blocked;
END
$$;
COMMENT ON FUNCTION mill.block_pending IS
    'Makes pending tasks of a queue or a group wait for a permit (pending -> blocked) if they were enqueued before '
    'the limit was set. Until then, claims skip these tasks. Returns the number of tasks';

-- Loose index scans, one probe per queue and per group with pending tasks, so that the cost does not depend on the
-- number of limits and groups.
CREATE OR REPLACE FUNCTION mill.pending_without_permits() RETURNS TABLE (queue text, group_name text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    WITH RECURSIVE pending (queue) AS (
        (SELECT t.queue FROM mill.tasks t WHERE t.state = 'pending' ORDER BY t.queue LIMIT 1)
        UNION ALL
        SELECT next.queue FROM pending p CROSS JOIN LATERAL (SELECT t.queue FROM mill.tasks t
            WHERE t.state = 'pending' AND t.queue > p.queue ORDER BY t.queue LIMIT 1) AS next
    ), grouped (name) AS (
        (SELECT t.group_name FROM mill.tasks t WHERE t.state = 'pending' AND t.group_name IS NOT NULL
         ORDER BY t.group_name LIMIT 1)
        UNION ALL
        SELECT next.group_name FROM grouped p CROSS JOIN LATERAL (SELECT t.group_name FROM mill.tasks t
            WHERE t.state = 'pending' AND t.group_name > p.name ORDER BY t.group_name LIMIT 1) AS next
    )
    -- LIMIT makes each row a probe. In a join, the planner may compare all queues with all limits or tasks.
    SELECT p.queue::text, NULL FROM pending p
        CROSS JOIN LATERAL (SELECT l.id FROM mill.limits l
            WHERE l.kind = 'queue' AND l.name = p.queue AND l.run_id = 0 AND l.requires_permit LIMIT 1) AS l
        CROSS JOIN LATERAL (SELECT FROM mill.tasks t WHERE t.state = 'pending' AND t.queue = p.queue
            AND NOT ARRAY[l.id] <@ coalesce(t.limits, '{}') LIMIT 1) AS t
    UNION ALL
    SELECT NULL, p.name::text FROM grouped p
        CROSS JOIN LATERAL (SELECT FROM mill.groups g WHERE g.name = p.name AND g.requires_permit LIMIT 1) AS g
        CROSS JOIN LATERAL (SELECT FROM mill.tasks t WHERE t.state = 'pending' AND t.group_name = p.name
            AND NOT mill.has_group_permit(t.group_name, t.limits) LIMIT 1) AS t
$$;
COMMENT ON FUNCTION mill.pending_without_permits IS
    'Returns the queues and the groups with a pending task that lacks the permit of the queue or the group, for '
    'mill.block_pending: one of both in each row';

CREATE OR REPLACE FUNCTION mill.admit_running() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task mill.tasks;
    chain bigint[];
BEGIN
    FOR task IN SELECT t.* FROM mill.tasks t
        WHERE t.state = 'running' AND (
            EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = t.queue AND l.run_id = 0
                AND l.requires_permit AND l.id <> ALL (coalesce(t.limits, '{}')))
            OR t.group_name IS NOT NULL AND NOT mill.has_group_permit(t.group_name, t.limits))
        -- Skips tasks that are about to end.
        ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        PERFORM mill.create_limits(ARRAY[task.id]);
        chain := mill.required_limits(task.queue, task.group_name, task.run_id, task.concurrency_key);
        -- Another transaction is creating a limit. A later call admits the task.
        CONTINUE WHEN 0 >= ANY (chain);
        INSERT INTO mill.permits (limit_id, task_id)
            SELECT c.id, task.id FROM unnest(chain) AS c (id) WHERE c.id <> ALL (coalesce(task.limits, '{}'));
        UPDATE mill.tasks t SET limits = chain WHERE t.id = task.id;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.admit_running IS
    'Gives running tasks the permits of limits that were set after they had started, so that they count. A limit may '
    'then have more permits than it allows, and grants none until enough of these tasks have ended';

CREATE OR REPLACE FUNCTION mill.correct_starts() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET jit = off AS $$
    -- Only tasks with a rate: a change of a running task can abort it in isolation level SERIALIZABLE. Skips tasks that
    -- are about to end.
    UPDATE mill.tasks t SET claimed_at = clock_timestamp()
        WHERE t.state = 'running' AND t.id = ANY (ARRAY(SELECT r.id FROM mill.tasks r
            WHERE r.state = 'running' AND r.claimed_at > clock_timestamp() AND EXISTS (SELECT FROM mill.limits l
                WHERE l.id = ANY (r.limits) AND l.window_starts IS NOT NULL)
            ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED))
$$;
COMMENT ON FUNCTION mill.correct_starts IS
    'Changes starts in the future, which are from before the clock was set back, to the current time. They would count '
    'towards a rate until the clock has caught up';

CREATE OR REPLACE FUNCTION mill.enforce_limits(limit_ids bigint[], queue text, group_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- mill.revoke_permits locks the limits first. So no other session grants their permits in this transaction.
    PERFORM mill.revoke_permits(limit_ids);
    -- A claim in progress does not see the new limit, and mill.block_pending skips its task. These statements wait
    -- until the claim has ended; mill.admit_running then counts the task.
    PERFORM FROM mill.tasks t WHERE t.state = 'pending' AND t.queue = enforce_limits.queue
        AND NOT limit_ids && coalesce(t.limits, '{}') ORDER BY t.id FOR NO KEY UPDATE;
    PERFORM FROM mill.tasks t WHERE t.state = 'pending' AND t.group_name = enforce_limits.group_name
        AND NOT limit_ids && coalesce(t.limits, '{}') ORDER BY t.id FOR NO KEY UPDATE;
    PERFORM mill.block_pending(queue, group_name);
    PERFORM mill.admit_running();
    PERFORM pg_notify('mill', 'sweep');
END
$$;
COMMENT ON FUNCTION mill.enforce_limits IS
    'Applies changed limits to existing tasks: revokes the permits of tasks that have not started, and counts the '
    'running ones. Workers then grant permits under the new limits';

CREATE OR REPLACE FUNCTION mill.reconcile_limits() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms'
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    began CONSTANT timestamptz := clock_timestamp();
    closed bigint[];
    hold record;
    kept bigint[];
BEGIN
    -- At most one worker at a time continues, and for the whole fleet at most once a second.
    INSERT INTO mill.limit_reconciliation (at) VALUES ('-infinity') ON CONFLICT DO NOTHING;
    -- A time in the future shows that the clock was set back.
    PERFORM FROM mill.limit_reconciliation r
        WHERE r.at NOT BETWEEN clock_timestamp() - r.pause AND clock_timestamp()
        FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE mill.limit_reconciliation SET at = clock_timestamp();
    -- Includes tasks whose active period has opened again since. Claims skip a task whose start_by has
    -- passed, so the task needs a new permit.
    SELECT array_agg(DISTINCT l.id) INTO closed
        FROM mill.tasks t JOIN mill.limits l ON l.id = ANY (t.limits) AND l.kind = 'group'
        WHERE t.state = 'pending' AND t.group_name IS NOT NULL AND t.start_by <= clock_timestamp();
    PERFORM mill.revoke_permits(closed) WHERE closed IS NOT NULL;
    SELECT h.* INTO hold FROM mill.on_hold() AS h;
    IF num_nonnulls(hold.queues, hold.targets) > 0 THEN
        SELECT array_agg(DISTINCT p.limit_id) INTO kept FROM mill.permits p JOIN mill.tasks t ON t.id = p.task_id
            WHERE p.counts_until IS NULL AND t.state IN ('pending', 'blocked')
                AND (t.queue = ANY (hold.queues) OR t.run_as = ANY (hold.targets));
        PERFORM mill.revoke_permits(kept) WHERE kept IS NOT NULL;
    END IF;
    PERFORM mill.block_pending(p.queue, p.group_name) FROM mill.pending_without_permits() AS p;
    PERFORM mill.admit_running();
    PERFORM mill.correct_starts();
    UPDATE mill.limit_reconciliation SET at = clock_timestamp(),
        pause = least(greatest('1 second', 9 * (clock_timestamp() - began)), '10 seconds');
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.reconcile_limits IS
    'Enforces limits on tasks that were enqueued while a limit was being set, on tasks whose active period has '
    'closed, on tasks that are on hold, and on tasks whose limit was removed. Workers call it before '
    'mill.grant_waiting_permits. The calls of all workers take at most a tenth of the time: one that comes '
    'within limit_reconciliation.pause of the previous one returns false and does nothing';
GRANT EXECUTE ON FUNCTION mill.reconcile_limits TO mill_worker;
