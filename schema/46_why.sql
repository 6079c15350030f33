-- Why: one sentence about a task or a run.
--
-- Why a task, also one of a run, is not running, or what it is doing; how far a run is, or how it has
-- ended.
--
-- The functions see every row, regardless of their caller, and show messages only if settings.hide_statements
-- is not set.

-- A SECURITY DEFINER function cannot determine its caller, so the setting hides messages from every
-- caller.
CREATE OR REPLACE FUNCTION mill.visible_message(message text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT message FROM mill.settings s WHERE NOT s.hide_statements
$$;
COMMENT ON FUNCTION mill.visible_message IS
    'Returns the message, or null if settings.hide_statements is set, for mill.why';

CREATE OR REPLACE FUNCTION mill.why_blocked(task mill.tasks) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    terms record;
    period record;
    subject text;
    idle bigint;
    holder bigint;
    ahead bigint;
    reported text;
BEGIN
    SELECT l.* INTO terms FROM mill.limit_status l WHERE l.id = task.blocking_limit_id;
    IF NOT FOUND THEN
        SELECT NULL::bigint AS id, CASE WHEN g.name IS NULL THEN 'key' ELSE 'group' END::mill.limit_kind AS kind,
                coalesce(g.name, task.concurrency_key) AS name,
                CASE WHEN g.name IS NULL THEN 0 ELSE coalesce(task.run_id, 0) END AS run_id,
                coalesce(g.max_running = 0, false) AS paused, g.opens, g.closes, g.zone, 0 AS running,
                NULL::integer AS max_running, NULL::integer AS rate_starts
            INTO terms FROM (SELECT) AS one LEFT JOIN mill.groups g ON g.name = task.group_name
                AND (task.concurrency_key IS NULL OR task.limits[1] <> task.blocking_limit_id);
    END IF;
    SELECT count(*) INTO ahead FROM (SELECT FROM mill.tasks t
        WHERE t.state = 'blocked' AND t.blocking_limit_id = task.blocking_limit_id AND t.priority = task.priority
            AND t.id < task.id LIMIT 100000) AS before;
    IF terms.kind = 'crash' THEN
        RETURN format('it ran when the server crashed at %s, and such tasks run one at a time, until an attempt of '
            'each has ended; tasks ahead with the same priority: %s', (SELECT date_trunc('second', s.crashed_at)
                FROM mill.server s), CASE ahead WHEN 100000 THEN 'at least ' ELSE '' END || ahead);
    END IF;
    subject := format('%s "%s"%s', CASE terms.kind WHEN 'key' THEN 'concurrency key' ELSE terms.kind::text END,
        terms.name, CASE WHEN terms.run_id <> 0 THEN format(' in run %s', terms.run_id) ELSE '' END);
    SELECT a.* INTO period FROM mill.active_period(terms.opens, terms.closes, terms.zone, now()) AS a;
    IF terms.paused THEN
        -- A queue can also be paused with mill.pause, so this message does not say that the queue is
        -- paused.
        RETURN format(CASE terms.kind WHEN 'queue' THEN '%s has max_running 0' ELSE '%s is paused' END, subject);
    ELSIF NOT period.open THEN
        RETURN format('%s is outside its active period (%s to %s, %s) until %s', subject,
            to_char(terms.opens, 'HH24:MI'), to_char(terms.closes, 'HH24:MI'), terms.zone,
            date_trunc('second', period.until));
    ELSIF terms.running >= terms.max_running THEN
        -- As in mill.revoke_permits, the CTE probes permits_limit.
        WITH granted AS MATERIALIZED (
            SELECT p.task_id, p.counts_until FROM mill.permits p WHERE p.limit_id = terms.id
        )
        SELECT count(*), min(t.id) INTO idle, holder FROM granted g JOIN mill.tasks t ON t.id = g.task_id
            WHERE g.counts_until IS NULL AND t.state <> 'running';
        -- A task that holds a permit may wait for something else. Its answer may be that of a later limit, so at most
        -- three answers are nested.
        RETURN format('%s has %s of %s tasks running%s; tasks ahead with the same priority: %s%s', subject,
            terms.running - idle, terms.max_running,
            CASE WHEN idle > 0 THEN format('; tasks that wait hold %s (task %s: %s)', CASE idle WHEN 1 THEN 'a permit'
                ELSE idle || ' permits' END, holder, mill.why_task(holder)) ELSE '' END,
            CASE ahead WHEN 100000 THEN 'at least ' ELSE '' END, ahead);
    ELSIF terms.rate_starts IS NOT NULL THEN
        RETURN format('%s allows %s per %s; tasks ahead with the same priority: %s%s', subject,
            CASE terms.rate_starts WHEN 1 THEN '1 start' ELSE terms.rate_starts || ' starts' END, terms.rate_period,
            CASE ahead WHEN 100000 THEN 'at least ' ELSE '' END, ahead);
    END IF;
    SELECT w.error INTO reported FROM mill.workers w
        WHERE starts_with(w.error, 'grant_permits: ') AND now() - w.heartbeat_at < w.orphan_timeout LIMIT 1;
    RETURN format(CASE WHEN terms.id IS NULL THEN 'it waits until a worker has created the limit of %s, which another '
            'transaction may be creating or removing' ELSE 'it is about to get a permit of %s' END, subject)
        || coalesce(', but a worker reports the error ' || reported, '');
END
$$;
COMMENT ON FUNCTION mill.why_blocked IS 'Returns the answer of mill.why for a task that waits for a permit';

CREATE OR REPLACE FUNCTION mill.with_lateness(sentence text, run_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sentence || coalesce((SELECT format('; its run %s has been late since %s', r.id,
            date_trunc('second', r.late_since)) FROM mill.late_runs r WHERE r.id = with_lateness.run_id), '')
$$;
COMMENT ON FUNCTION mill.with_lateness IS
    'Returns the sentence, and since when the run is late if it is in progress and late, for mill.why';

CREATE OR REPLACE FUNCTION mill.why_running(task mill.tasks) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    place text;
    backend record;
    reported text;
BEGIN
    SELECT s.host || ':' || s.pid INTO place
        FROM mill.worker_starts s WHERE s.id = task.claimed_by;
    place := coalesce(place, left(task.claimed_by::text, 8));
    SELECT b.* INTO backend FROM mill.backends() b
        WHERE b.pid = task.session_pid AND task.receipt IS NULL;
    IF task.receipt IS NOT NULL THEN
        place := format('%s in target "%s"', place, task.run_as);
    END IF;
    IF EXISTS (SELECT FROM mill.cancel_requests r WHERE r.task_id = task.id) THEN
        RETURN format('it is running on %s and about to be cancelled', place);
    ELSIF NOT EXISTS (SELECT FROM mill.workers w WHERE w.id = task.claimed_by
        AND now() - w.heartbeat_at < w.orphan_timeout)
    THEN
        RETURN format('its worker %s has stopped sending heartbeats; the task is about to be reclaimed%s', place,
            CASE WHEN task.receipt IS NOT NULL THEN format(', when target "%s" has answered whether it has '
                'committed', task.run_as) END);
    END IF;
    SELECT w.error INTO reported FROM mill.workers w
        WHERE w.id = task.claimed_by AND w.error LIKE format('%% of task %s: %%', task.id);
    IF FOUND THEN
        RETURN format('its statement has %s, but worker %s fails again and again: %s',
            CASE WHEN starts_with(reported, 'loading') THEN 'not started' ELSE 'ended' END, place, reported);
    ELSIF cardinality(backend.blocked_by) > 0 THEN
        RETURN format('it is running on %s since %s, blocked by backend %s', place,
            date_trunc('second', task.claimed_at), (SELECT string_agg(format('%s (%s)', b->>'pid',
                coalesce('task ' || (b->>'task_id'), concat_ws(', ', nullif(b->>'application', ''),
                    'user ' || (b->>'user'), b->>'state'))), ', ')
                FROM jsonb_array_elements(backend.blockers) AS b));
    END IF;
    RETURN format('it is running on %s since %s%s%s', place, date_trunc('second', task.claimed_at),
        CASE WHEN EXISTS (SELECT FROM mill.crash_suspects s WHERE s.id = task.id)
            THEN ', alone among the tasks that ran when the server crashed' END,
        CASE WHEN backend.wait_event_type <> 'Client'
            THEN format(', waiting for %s: %s', backend.wait_event_type, backend.wait_event) END);
END
$$;
COMMENT ON FUNCTION mill.why_running IS 'Returns the answer of mill.why for a running task';

CREATE OR REPLACE FUNCTION mill.why_unclaimed(task mill.tasks) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    serving record;
    unconnected text;
    ahead bigint;
    kept bigint;
    reported text;
BEGIN
    SELECT count(*) AS workers, coalesce(sum((w.profiles->>task.run_as::text)::integer), 0) AS readers,
        bool_and(w.draining) AS draining, sum(u.failed) AS failed, min(u.login) AS login, min(u.error) AS error,
        (SELECT count(DISTINCT t.session_pid) FROM mill.tasks t
            WHERE t.state = 'running' AND t.run_as = task.run_as AND t.claimed_by = ANY (array_agg(w.id))) AS busy
        INTO serving
        FROM mill.workers w LEFT JOIN LATERAL jsonb_to_recordset(w.unconnected)
            AS u(profile text, failed integer, login text, error text) ON u.profile = task.run_as
        WHERE (w.queues IS NULL OR task.queue = ANY (w.queues)) AND w.profiles ? task.run_as
            AND now() - w.heartbeat_at < w.orphan_timeout;
    IF serving.workers = 0 THEN
        RETURN format('no live worker serves queue "%s"%s', task.queue,
            CASE WHEN task.run_as <> '' THEN format(' and has the profile "%s" in its configuration', task.run_as) END);
    ELSIF serving.draining THEN
        RETURN format('every worker that serves queue "%s" is draining', task.queue);
    ELSIF task.state = 'scheduled' THEN
        RETURN 'it is due and about to become pending';
    END IF;
    IF serving.failed > 0 THEN
        unconnected := format('%s of %s readers of login %s%s cannot connect: %s', serving.failed, serving.readers,
            serving.login, CASE WHEN task.run_as <> '' THEN format(' (profile %s)', task.run_as) END, serving.error);
        serving.readers := serving.readers - serving.failed;
    END IF;
    SELECT count(*) INTO ahead FROM (SELECT FROM mill.tasks t
        WHERE t.state = 'pending' AND t.queue = task.queue AND t.priority = task.priority
            AND t.id < task.id LIMIT 100000) AS before;
    -- Readers that are reserved for tasks of priority reserved do not run other tasks.
    IF task.priority <> 'reserved' THEN
        SELECT coalesce(sum(r.reserved), 0) INTO kept
            FROM mill.workers w JOIN mill.reserved_by_profile() r ON r.worker_id = w.id
            WHERE (w.queues IS NULL OR task.queue = ANY (w.queues)) AND r.profile = task.run_as
                AND now() - w.heartbeat_at < w.orphan_timeout;
        IF kept > 0 AND serving.busy < serving.readers AND serving.readers - kept <= serving.busy THEN
            RETURN format('readers that serve queue "%3$s": %1$s of %2$s are '
                'kept for reserved tasks, the others are busy',
                kept, serving.readers, task.queue);
        END IF;
    END IF;
    SELECT min(w.error) INTO reported FROM mill.workers w
        WHERE w.profiles ? task.run_as AND now() - w.heartbeat_at < w.orphan_timeout
        HAVING bool_and(w.error LIKE format('targets: target %s: %%', task.run_as));
    IF task.receipt IS NOT NULL AND reported IS NOT NULL THEN
        RETURN format('no worker reaches its target: %s', substr(reported, 10));
    END IF;
    SELECT min(w.error) INTO reported FROM mill.workers w
        WHERE (w.queues IS NULL OR task.queue = ANY (w.queues)) AND w.profiles ? task.run_as
            AND now() - w.heartbeat_at < w.orphan_timeout
        HAVING bool_and(starts_with(w.error, 'claims: '));
    IF reported IS NOT NULL THEN
        RETURN format('no worker that serves queue "%s" can claim tasks: %s', task.queue, substr(reported, 9));
    ELSIF serving.readers <= 0 AND unconnected IS NOT NULL THEN
        RETURN unconnected;
    ELSIF serving.busy < serving.readers THEN
        RETURN format('it is about to be claimed; idle readers that serve queue "%3$s": %1$s of %2$s',
            serving.readers - serving.busy, serving.readers, task.queue) || coalesce('; ' || unconnected, '');
    END IF;
    RETURN format('all readers (%s) that serve queue "%s" are busy; tasks ahead with the same priority: %s%s',
        serving.readers, task.queue, CASE ahead WHEN 100000 THEN 'at least ' ELSE '' END, ahead)
        || coalesce('; ' || unconnected, '');
END
$$;
COMMENT ON FUNCTION mill.why_unclaimed IS
    'Returns the answer of mill.why for a task that only waits for a worker: no worker serves it, the readers are '
    'busy, or its claim fails';

CREATE OR REPLACE FUNCTION mill.why_task(id bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    last_attempt mill.attempts;
    pause text := mill.describe_fleet_pause();
BEGIN
    SELECT t.* INTO task FROM mill.tasks t WHERE t.id = why_task.id;
    SELECT a.* INTO last_attempt FROM mill.attempts a
        WHERE a.task_id = why_task.id ORDER BY a.finished_at DESC LIMIT 1;
    IF task.id IS NULL THEN
        IF last_attempt.task_id IS NULL THEN
            RETURN NULL;
        END IF;
        RETURN format('it is finished: %s at %s%s', last_attempt.outcome,
            date_trunc('second', last_attempt.finished_at),
            CASE WHEN last_attempt.started_at IS NOT NULL
                THEN format(' on attempt %s', last_attempt.attempt) ELSE '' END
            || coalesce(': ' || mill.visible_message(last_attempt.message), ''));
    END IF;
    IF task.state = 'running' THEN
        RETURN mill.why_running(task);
    ELSIF pause IS NOT NULL AND (task.state <> 'scheduled' OR task.due_at <= now()) THEN
        RETURN pause;
    ELSIF task.state = 'scheduled' AND task.due_at > now() THEN
        IF task.attempt > 0 AND last_attempt.task_id IS NOT NULL THEN
            RETURN format('attempt %s ended as %s (%s); the next one is due at %s, in %s',
                last_attempt.attempt, last_attempt.outcome,
                coalesce(mill.visible_message(last_attempt.message), last_attempt.sqlstate, 'no message'),
                date_trunc('second', task.due_at), date_trunc('second', task.due_at - now()));
        END IF;
        RETURN format('it is due at %s, in %s', date_trunc('second', task.due_at),
            date_trunc('second', task.due_at - now()));
    ELSIF EXISTS (SELECT FROM mill.queues q WHERE q.name = task.queue AND q.paused) THEN
        RETURN format('queue "%s" is paused', task.queue);
    ELSIF EXISTS (SELECT FROM mill.queues q WHERE q.name = task.queue AND q.held_back IS NOT NULL) THEN
        RETURN (SELECT format('queue "%s" is held back: %s', q.name, q.held_back) FROM mill.queues q
            WHERE q.name = task.queue);
    ELSIF EXISTS (SELECT FROM mill.target_checks c WHERE c.name = task.run_as AND c.held_back IS NOT NULL) THEN
        RETURN (SELECT format('target "%s" is held back: %s', c.name, c.held_back) FROM mill.target_checks c
            WHERE c.name = task.run_as);
    ELSIF task.state = 'blocked' THEN
        RETURN mill.why_blocked(task);
    END IF;
    RETURN mill.why_unclaimed(task);
END
$$;
COMMENT ON FUNCTION mill.why_task IS 'Returns the answer of mill.why(bigint), without the lateness of a run';

CREATE OR REPLACE FUNCTION mill.why(id bigint) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.with_lateness(mill.why_task(id), (SELECT t.run_id FROM mill.tasks t WHERE t.id = why.id))
$$;
COMMENT ON FUNCTION mill.why(bigint) IS
    'Returns one sentence: why this task is not running, or what it is doing; null if the task does not exist';
GRANT EXECUTE ON FUNCTION mill.why(bigint) TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.why_run_task(run_id bigint, task text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_task mill.run_tasks;
    run mill.runs;
    parents text;
    causes text;
    indirect boolean;
BEGIN
    SELECT t.* INTO found_task FROM mill.run_tasks t WHERE t.run_id = why_run_task.run_id AND t.name = task;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = why_run_task.run_id;
    IF found_task.state = 'released' THEN
        RETURN coalesce(mill.why_task(found_task.task_id), 'it has just finished');
    ELSIF found_task.state = 'ready' AND found_task.approval THEN
        RETURN format('it waits for approval since %s%s', date_trunc('second', found_task.approval_since),
            ': ' || found_task.approval_note);
    ELSIF found_task.state = 'ready' THEN
        RETURN 'it is ready and about to be put into the queue';
    ELSIF found_task.state = 'cancelled' AND NOT found_task.approved THEN
        RETURN coalesce('it was ' || mill.visible_message(found_task.message), 'it was rejected');
    ELSIF found_task.state = 'cancelled' AND found_task.started_at IS NULL THEN
        RETURN format('it was cancelled before it started%s',
            coalesce(' by ' || run.cancelled_by, ': its run ' || run.cancel_reason));
    ELSIF found_task.state NOT IN ('waiting', 'upstream_failed', 'skipped') THEN
        RETURN format('it is finished: %s at %s%s%s', found_task.outcome, date_trunc('second', found_task.finished_at),
            CASE WHEN found_task.state = 'failed' AND found_task.ignore_failure THEN ', ignored' ELSE '' END,
            ': ' || mill.visible_message(found_task.message));
    END IF;
    -- The first ten parents that prevent the task from running.
    SELECT string_agg(format('%s (%s, expected %s)', p.name, CASE WHEN p.asks THEN 'needs approval'
                ELSE p.state::text END, p.expected), ', '),
            bool_or(p.state IN ('upstream_failed', 'skipped')) INTO parents, indirect FROM (
        SELECT t.name, t.state, e.expected, t.state = 'ready' AND t.approval AS asks
        FROM mill.run_edges e
            JOIN mill.run_tasks t ON t.run_id = e.run_id AND t.node = e.parent
        WHERE e.run_id = why_run_task.run_id AND e.child = found_task.node AND CASE found_task.state
            WHEN 'waiting' THEN t.state IN ('waiting', 'ready', 'released')
            ELSE NOT mill.satisfies(t.state, e.expected) END
        ORDER BY t.node LIMIT 10) AS p;
    IF found_task.state <> 'waiting' THEN
        -- Tasks further up whose end is the cause, if the parents could not run either.
        WITH RECURSIVE up (node, state) AS (
            SELECT found_task.node, found_task.state
            UNION
            SELECT p.node, p.state
            FROM up u JOIN mill.run_edges e ON e.run_id = why_run_task.run_id AND e.child = u.node
                JOIN mill.run_tasks p ON p.run_id = e.run_id AND p.node = e.parent
            WHERE u.state IN ('upstream_failed', 'skipped') AND NOT mill.satisfies(p.state, e.expected)
        )
        SELECT string_agg(format('%s (%s)', c.name, concat_ws(': ', c.state, mill.visible_message(c.message))), ', '
                ORDER BY c.node) INTO causes
            FROM (SELECT t.* FROM up u JOIN mill.run_tasks t ON t.run_id = why_run_task.run_id AND t.node = u.node
                WHERE u.state NOT IN ('upstream_failed', 'skipped') ORDER BY t.node LIMIT 10) AS c;
        RETURN format('it %s because of its parents: %s%s',
            CASE found_task.state WHEN 'skipped' THEN 'is skipped' ELSE 'cannot run' END, parents,
            CASE WHEN indirect THEN '; cause: ' || causes END);
    ELSIF run.cancelled_at IS NOT NULL THEN
        RETURN 'its run is being cancelled';
    END IF;
    RETURN format('it waits for %s%s', CASE WHEN found_task.join_mode = 'any' THEN 'one of ' ELSE '' END,
        coalesce(parents, 'parents that have just finished'))
        || CASE WHEN found_task.parents - found_task.satisfied - found_task.unsatisfied > 10
            THEN format(' and others, %s in total', found_task.parents - found_task.satisfied - found_task.unsatisfied)
            ELSE '' END;
END
$$;
COMMENT ON FUNCTION mill.why_run_task IS
    'Returns the answer of mill.why(bigint, text), without the lateness of the run';

CREATE OR REPLACE FUNCTION mill.why(run_id bigint, task text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM mill.run_tasks t WHERE t.run_id = why.run_id AND t.name = task
            AND t.finished_at IS NULL) THEN mill.with_lateness(mill.why_run_task(run_id, task), run_id)
        ELSE mill.why_run_task(run_id, task) END
$$;
COMMENT ON FUNCTION mill.why(bigint, text) IS
    'Returns one sentence: why this task of a run is not running, or how it ended; null if the task does not exist';
GRANT EXECUTE ON FUNCTION mill.why(bigint, text) TO mill_viewer;

CREATE OR REPLACE FUNCTION mill.why_run(run_id bigint) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run mill.runs;
    counts record;
    sentence text;
BEGIN
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = why_run.run_id;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- Counts of an ended run are in its row; the names are those of the first three tasks that explain its state.
    SELECT count(*) AS tasks, count(*) FILTER (WHERE t.state IN ('waiting', 'ready', 'released')) AS open,
            count(*) FILTER (WHERE t.state = 'released') AS released,
            (array_agg(format('%s waits for approval since %s', t.name, date_trunc('second', t.approval_since))
                ORDER BY t.approval_since) FILTER (WHERE t.state = 'ready' AND t.approval))[:3]
                AS asking,
            (array_agg(concat_ws(': ', t.name, mill.visible_message(t.message)) ORDER BY t.finished_at)
                FILTER (WHERE t.state::text = run.state::text AND NOT t.ignore_failure))[:3] AS causes
        INTO counts FROM mill.run_tasks t WHERE t.run_id = run.id;
    IF run.state = 'running' THEN
        sentence := concat_ws('; ', format('it is in progress since %s: %s of %s tasks have ended, %s in the queue or '
                'running', date_trunc('second', coalesce(run.restarted_at, run.started_at)),
                counts.tasks - counts.open, counts.tasks, counts.released),
            array_to_string(counts.asking, ', '),
            CASE WHEN run.cancelled_at IS NOT NULL THEN 'it is being cancelled'
                || coalesce(': ' || run.cancel_reason, ' by ' || run.cancelled_by, '') END,
            CASE WHEN run.late_at <= now()
                THEN format('it has been late since %s', date_trunc('second', run.late_at)) END,
            CASE WHEN run.cancelled_at IS NULL
                THEN 'its timeout is at ' || date_trunc('second', run.timeout_at) END);
        RETURN sentence || CASE WHEN run.cancelled_at IS NULL
            THEN coalesce('; ' || mill.describe_fleet_pause(), '') ELSE '' END;
    END IF;
    RETURN concat_ws('; ', format('it is finished: %s at %s', run.state, date_trunc('second', run.finished_at))
            || CASE WHEN run.cancelled_at IS NOT NULL
                THEN coalesce(': ' || run.cancel_reason, ' by ' || run.cancelled_by, '') ELSE '' END,
        CASE WHEN run.cancelled_at IS NULL AND run.state <> 'succeeded'
            THEN nullif(array_to_string(counts.causes, ', '), '') END,
        CASE WHEN run.late_since IS NOT NULL
            THEN format('it was late, its deadline was %s', date_trunc('second', run.late_since)) END);
END
$$;
COMMENT ON FUNCTION mill.why_run IS
    'Returns one sentence about a run: how far it is and what it waits for, or how it has ended; null if it does not '
    'exist';
GRANT EXECUTE ON FUNCTION mill.why_run TO mill_viewer;
