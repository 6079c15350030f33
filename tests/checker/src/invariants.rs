//! The invariants, one query for each. A query returns one sentence per violation.

/// Every invariant with its query.
pub(crate) const ALL: &[(&str, &str)] = &[
    ("nothing_lost", NOTHING_LOST),
    ("nothing_unexpected", NOTHING_UNEXPECTED),
    ("no_effect_twice", NO_EFFECT_TWICE),
    ("effect_iff_succeeded", EFFECT_IFF_SUCCEEDED),
    ("one_holder", ONE_HOLDER),
    ("limits_kept", LIMITS_KEPT),
    ("graph_order", GRAPH_ORDER),
    ("runs_agree", RUNS_AGREE),
    ("attempts_bounded", ATTEMPTS_BOUNDED),
    ("attempts_increase", ATTEMPTS_INCREASE),
    ("at_most_once", AT_MOST_ONCE),
    ("starts_recorded", STARTS_RECORDED),
    ("ends_once", ENDS_ONCE),
    ("cancelled_stays", CANCELLED_STAYS),
    ("key_is_one_task", KEY_IS_ONE_TASK),
    ("recovered_in_time", RECOVERED_IN_TIME),
    ("nothing_left", NOTHING_LEFT),
    ("no_session_left", NO_SESSION_LEFT),
];

/// Returns the names of all invariants, in the order of the findings.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// Every acknowledged task is live or has ended.
const NOTHING_LOST: &str = "
SELECT format('task %s (%s) was acknowledged and does not exist', o.task, o.name) FROM chaos.ops o
WHERE o.what = 'enqueue' AND o.answer = 'ok'
    AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = o.task)
    AND NOT EXISTS (SELECT FROM mill.attempts a WHERE a.task_id = o.task AND a.final)
UNION ALL
SELECT format('run %s (%s) was acknowledged and does not exist', o.run, o.name) FROM chaos.ops o
WHERE o.what = 'start_run' AND o.answer = 'ok'
    AND NOT EXISTS (SELECT FROM mill.runs r WHERE r.id = o.run)";

/// Every existing task or run was requested, and the request was not refused.
const NOTHING_UNEXPECTED: &str = "
SELECT format('task %s (%s) was not requested', s.id, s.name)
FROM (SELECT t.id, t.name, t.node FROM mill.tasks t
    UNION SELECT a.task_id, a.name, a.node FROM mill.attempts a) AS s (id, name, node)
WHERE s.node IS NULL
    AND NOT EXISTS (SELECT FROM chaos.ops o WHERE o.task = s.id AND o.what = 'enqueue' AND o.answer = 'ok')
    AND NOT EXISTS (SELECT FROM chaos.ops o
        WHERE o.name = s.name AND o.what = 'enqueue' AND o.answer = 'unknown')
UNION ALL
SELECT format('run %s was not requested', r.id) FROM mill.runs r
WHERE NOT EXISTS (SELECT FROM chaos.ops o WHERE o.run = r.id AND o.what = 'start_run' AND o.answer = 'ok')
    AND NOT EXISTS (SELECT FROM chaos.ops o
        WHERE o.name = r.params->>'op' AND o.what = 'start_run' AND o.answer = 'unknown')
UNION ALL
SELECT format('task %s belongs to a run that does not exist', a.task_id) FROM mill.attempts a
WHERE a.node IS NOT NULL AND NOT EXISTS (SELECT FROM mill.run_tasks t
    WHERE (t.run_id, t.node, t.task_id) = (a.run_id, a.node, a.task_id))";

/// In transaction mode, a task has one effect, and at most one more for each retry after its end.
const NO_EFFECT_TWICE: &str = "
SELECT format('task %s has %s effects', e.task, count(*))
FROM chaos.effect e LEFT JOIN chaos.lives l ON l.task = e.task
WHERE e.mode = 'transaction'
GROUP BY e.task, l.more HAVING count(*) > 1 + coalesce(l.more, 0)";

/// An attempt succeeded if and only if its effect exists. The effect names the session of the
/// attempt. In autocommit mode, an attempt that is recorded as lost may nevertheless have had its
/// effect.
const EFFECT_IFF_SUCCEEDED: &str = "
SELECT format('attempt %s of task %s succeeded and has no effect', a.attempt, a.task_id)
FROM mill.attempts a
WHERE a.outcome = 'succeeded' AND NOT EXISTS (SELECT FROM chaos.effect e
    WHERE (e.task, e.attempt, e.pid) = (a.task_id, a.attempt, a.session_pid))
UNION ALL
SELECT format('attempt %s of task %s has an effect and did not succeed', e.attempt, e.task)
FROM chaos.effect e
WHERE e.mode = 'transaction' AND NOT EXISTS (SELECT FROM mill.attempts a
    WHERE (a.task_id, a.attempt, a.session_pid) = (e.task, e.attempt, e.pid) AND a.outcome = 'succeeded')";

/// A task has one holder at a time. No execution starts while another execution that left an effect
/// is in progress, and no attempt in history was claimed before the previous attempt had ended.
const ONE_HOLDER: &str = "
SELECT format('task %s: an execution ended at %s, and another one had started at %s', e.task, e.finished_at,
    s.started_at)
FROM chaos.effect e
JOIN (SELECT task, attempt, pid, started_at FROM chaos.start
    UNION ALL SELECT task, attempt, pid, started_at FROM chaos.effect WHERE mode = 'transaction') AS s
    ON s.task = e.task AND s.started_at > e.started_at AND s.started_at < e.finished_at
UNION ALL
SELECT format('task %s: attempt %s was claimed by %s at %s, while attempt %s, of %s, ran from %s until it was %s at %s',
    a.task_id, a.attempt, a.worker_id, a.started_at, b.attempt, b.worker_id, b.started_at, b.outcome, b.finished_at)
FROM mill.attempts a JOIN mill.attempts b ON b.task_id = a.task_id
    AND (b.finished_at, b.attempt) < (a.finished_at, a.attempt) AND a.started_at < b.finished_at";

/// The number of concurrent executions that count towards a limit never exceeds the limit's highest
/// value.
const LIMITS_KEPT: &str = "
SELECT format('limit %s: %s at once, of %s', s.name, max(s.running), s.max_running)
FROM (SELECT m.name, l.max_running, sum(m.change) OVER (PARTITION BY m.name ORDER BY m.at, m.change) AS running
    FROM (SELECT unnest(e.limits) AS name, e.started_at AS at, 1 AS change FROM chaos.effect e
        UNION ALL SELECT unnest(e.limits), e.finished_at, -1 FROM chaos.effect e) AS m
    JOIN chaos.limits l ON l.name = m.name) AS s
WHERE s.running > s.max_running GROUP BY s.name, s.max_running";

/// A task of a run starts after its parents have ended as its edges require: after all of its
/// parents, or after one of them, as its join mode says.
const GRAPH_ORDER: &str = "
SELECT format('run %s: %s started at %s, before %s of its parents had ended as expected', c.run_id,
    c.name, c.began_at, c.parents - c.satisfied)
FROM (SELECT t.run_id, t.name, t.join_mode, b.began_at, count(*) AS parents,
        count(*) FILTER (WHERE p.satisfied_at <= b.began_at) AS satisfied
    FROM (SELECT a.run_id, a.node, min(a.started_at) AS began_at FROM mill.attempts a
        WHERE a.node IS NOT NULL AND a.started_at IS NOT NULL GROUP BY a.run_id, a.node) AS b
    JOIN mill.run_tasks t ON (t.run_id, t.node) = (b.run_id, b.node)
    JOIN (SELECT e.run_id, e.child, e.parent, min(a.finished_at) AS satisfied_at
        FROM mill.run_edges e LEFT JOIN mill.attempts a
            ON (a.run_id, a.node) = (e.run_id, e.parent) AND a.final
            AND CASE e.expected WHEN 'succeeded' THEN a.outcome = 'succeeded'
                WHEN 'failed' THEN a.outcome IN ('failed', 'timed_out', 'lost', 'unknown')
                ELSE true END
        GROUP BY e.run_id, e.child, e.parent) AS p ON (p.run_id, p.child) = (t.run_id, t.node)
    GROUP BY t.run_id, t.node, t.name, t.join_mode, b.began_at) AS c
WHERE CASE c.join_mode WHEN 'all' THEN c.satisfied < c.parents ELSE c.satisfied = 0 END
UNION ALL
SELECT format('run %s: %s had started before the effect of %s existed', c.run_id, c.name, p.name)
FROM mill.run_edges e
JOIN mill.run_tasks c ON (c.run_id, c.node) = (e.run_id, e.child)
JOIN mill.run_tasks p ON (p.run_id, p.node) = (e.run_id, e.parent)
JOIN (SELECT task, min(started_at) AS began_at FROM chaos.effect GROUP BY task) AS child
    ON child.task = c.task_id
LEFT JOIN (SELECT task, min(finished_at) AS finished_at FROM chaos.effect GROUP BY task) AS parent
    ON parent.task = p.task_id
WHERE e.expected = 'succeeded' AND c.join_mode = 'all'
    AND (parent.finished_at IS NULL OR parent.finished_at > child.began_at)";

/// The states of a run's tasks match the outcomes of their last attempts.
const RUNS_AGREE: &str = "
SELECT format('run %s has ended as %s, and %s is %s while its last attempt is %s', r.id, r.state, t.name,
    t.state, coalesce(a.outcome::text, 'nothing'))
FROM mill.runs r JOIN mill.run_tasks t ON t.run_id = r.id
LEFT JOIN (SELECT DISTINCT ON (a.run_id, a.node) a.run_id, a.node, a.outcome FROM mill.attempts a
    WHERE a.final AND a.node IS NOT NULL ORDER BY a.run_id, a.node, a.finished_at DESC) AS a
    ON (a.run_id, a.node) = (t.run_id, t.node)
WHERE r.state <> 'running' AND NOT CASE t.state
    WHEN 'succeeded' THEN coalesce(a.outcome = 'succeeded', false)
    WHEN 'failed' THEN coalesce(a.outcome <> 'succeeded', false)
    WHEN 'cancelled' THEN coalesce(a.outcome <> 'succeeded', true)
    WHEN 'upstream_failed' THEN coalesce(a.outcome <> 'succeeded', true)
    WHEN 'skipped' THEN coalesce(a.outcome <> 'succeeded', true)
    ELSE false END";

/// A task fails at most the permitted number of times. A permanently failed task has used all
/// attempts, unless it reported a permanent error, or failed by itself after an operator had
/// cancelled it. Up to five conflicts, twenty interruptions by the server, and a limited number of
/// crashes, do not use up attempts. The audit has the cancels whose answer was lost.
const ATTEMPTS_BOUNDED: &str = "
SELECT format('task %s: %s attempts failed, %s more by conflicts, and %s were interrupted, of %s', h.task_id,
    h.failures, h.conflicts, h.interrupted, h.max_attempts)
FROM (SELECT h.task_id, h.life, max(h.max_attempts) AS max_attempts,
        count(*) FILTER (WHERE h.outcome IN ('failed', 'timed_out') AND NOT h.conflict) AS failures,
        count(*) FILTER (WHERE h.conflict) AS conflicts,
        count(*) FILTER (WHERE h.outcome = 'interrupted') AS interrupted,
        bool_or(h.final AND h.outcome IN ('failed', 'timed_out') AND NOT h.at_most_once
            AND coalesce(h.sqlstate !~ '^(MT900|0A|25001|2D000|26|28|34|3D|3F|42|54)', true)) AS used_up,
        bool_or(h.outcome = 'failed' AND h.sqlstate IS NULL) AS unclear
    FROM chaos.history h GROUP BY h.task_id, h.life) AS h
WHERE h.failures + greatest(h.conflicts - 5, 0) > h.max_attempts
    OR h.interrupted > 20
    OR h.used_up AND NOT h.unclear AND h.failures + h.conflicts < h.max_attempts
        AND NOT EXISTS (SELECT FROM chaos.ops o WHERE o.task = h.task_id AND o.what = 'cancel')
        AND NOT EXISTS (SELECT FROM mill.audit u WHERE u.action = 'cancel' AND u.subject = 'task ' || h.task_id)
UNION ALL
SELECT format('task %s lost its worker %s times', h.task_id, count(*))
FROM chaos.history h WHERE h.outcome = 'lost'
GROUP BY h.task_id, h.life HAVING count(*) > current_setting('checker.max_crashes')::bigint";

/// The started attempts of a task have the numbers 1, 2, … without a gap, in the order of their
/// ends.
const ATTEMPTS_INCREASE: &str = "
SELECT format('task %s: attempt %s is number %s to end', a.task_id, a.attempt, a.n)
FROM (SELECT a.task_id, a.attempt, row_number() OVER (PARTITION BY a.task_id
        ORDER BY a.finished_at, a.attempt) AS n
    FROM mill.attempts a WHERE a.started_at IS NOT NULL) AS a
WHERE a.attempt <> a.n";

/// An at-most-once task starts once, and at most once more for each retry by an operator.
const AT_MOST_ONCE: &str = "
SELECT format('task %s was started %s times', s.task, s.n)
FROM (SELECT s.task, count(*) AS n FROM chaos.start s GROUP BY s.task) AS s
LEFT JOIN chaos.lives l ON l.task = s.task
WHERE s.n > 1 + coalesce(l.more, 0)
    AND (EXISTS (SELECT FROM mill.attempts a WHERE a.task_id = s.task AND (a.options).at_most_once)
        OR EXISTS (SELECT FROM mill.tasks t WHERE t.id = s.task AND (t.options).at_most_once))";

/// Every started attempt is in history, or its task is still live. A released attempt passes its
/// number to the next attempt; there is no next attempt if the task was cancelled meanwhile.
const STARTS_RECORDED: &str = "
SELECT format('attempt %s of task %s was started and is not recorded', s.attempt, s.task)
FROM chaos.start s
WHERE NOT EXISTS (SELECT FROM mill.attempts a WHERE (a.task_id, a.attempt) = (s.task, s.attempt))
    AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = s.task AND t.attempt >= s.attempt - 1)
    AND NOT EXISTS (SELECT FROM mill.attempts a
        WHERE (a.task_id, a.attempt) = (s.task, s.attempt - 1) AND a.outcome = 'cancelled')";

/// A task ends once, and at most once more for each retry after its end. It is not live after its
/// last end.
const ENDS_ONCE: &str = "
SELECT format('task %s has ended %s times', a.task_id, count(*))
FROM mill.attempts a LEFT JOIN chaos.lives l ON l.task = a.task_id
WHERE a.final GROUP BY a.task_id, l.more HAVING count(*) > 1 + coalesce(l.more, 0)
UNION ALL
SELECT format('task %s has ended and is %s', t.id, t.state)
FROM mill.tasks t LEFT JOIN chaos.lives l ON l.task = t.id
WHERE (SELECT count(*) FROM mill.attempts a WHERE a.task_id = t.id AND a.final) > coalesce(l.more, 0)";

/// A task that was cancelled before its claim has the outcome `cancelled` and no effect.
const CANCELLED_STAYS: &str = "
SELECT format('task %s was cancelled: it has %s effects, and ended as %s', o.task,
    (SELECT count(*) FROM chaos.effect e WHERE e.task = o.task AND e.mode = 'transaction'),
    (SELECT string_agg(a.outcome::text, ', ') FROM mill.attempts a WHERE a.task_id = o.task AND a.final))
FROM chaos.ops o
WHERE o.what = 'cancel' AND o.answer = 'ok' AND o.reply = 'cancelled'
    AND NOT EXISTS (SELECT FROM chaos.lives l WHERE l.task = o.task)
    AND (EXISTS (SELECT FROM chaos.effect e WHERE e.task = o.task AND e.mode = 'transaction')
        OR NOT EXISTS (SELECT FROM mill.attempts a
            WHERE a.task_id = o.task AND a.final AND a.outcome = 'cancelled'))";

/// Two tasks with the same deduplication key are never live at the same time.
const KEY_IS_ONE_TASK: &str = "
SELECT format('key %s: task %s was live from %s on, and another one until %s', k.key, k.id, k.began_at,
    k.before)
FROM (SELECT s.key, s.id, s.began_at, max(s.finished_at) OVER (PARTITION BY s.key ORDER BY s.began_at, s.id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (SELECT t.key, t.id, t.enqueued_at, 'infinity'::timestamptz FROM mill.tasks t
        UNION ALL SELECT a.key, a.task_id, a.enqueued_at, a.finished_at FROM mill.attempts a WHERE a.final
        ) AS s (key, id, began_at, finished_at)
    WHERE s.key IS NOT NULL AND NOT EXISTS (SELECT FROM chaos.lives l WHERE l.task = s.id)) AS k
WHERE k.began_at < k.before";

/// The tasks of dead workers are reclaimed soon enough after the last fault: within the orphan
/// timeout plus a bound.
const RECOVERED_IN_TIME: &str = "
SELECT format('task %s is claimed by worker %s, which is gone', t.id, t.claimed_by)
FROM mill.tasks t LEFT JOIN mill.workers w ON w.id = t.claimed_by
WHERE t.state = 'running'
    AND greatest(w.heartbeat_at, t.claimed_at, current_setting('checker.healed_at')::timestamptz)
        < clock_timestamp() - current_setting('checker.orphan_timeout')::interval
            - current_setting('checker.bound')::interval
UNION ALL
SELECT format('attempt %s of task %s was reclaimed %s after the last fault', a.attempt, a.task_id,
    a.finished_at - current_setting('checker.healed_at')::timestamptz)
FROM mill.attempts a
WHERE a.outcome IN ('lost', 'unknown') AND a.started_at < current_setting('checker.healed_at')::timestamptz
    AND a.finished_at > current_setting('checker.healed_at')::timestamptz
        + current_setting('checker.orphan_timeout')::interval + current_setting('checker.bound')::interval";

/// At the end no task is live, and no key or permit of a task remains.
const NOTHING_LEFT: &str = "
SELECT format('task %s (%s) is %s', t.id, t.name, t.state) FROM mill.tasks t
WHERE current_setting('checker.drained')::boolean
UNION ALL
SELECT format('run %s is in progress: %s open, %s events', r.id, r.open,
    (SELECT count(*) FROM mill.run_events e WHERE e.run_id = r.id)) FROM mill.runs r
WHERE current_setting('checker.drained')::boolean AND r.state = 'running'
UNION ALL
SELECT format('key %s belongs to task %s, which is gone', k.key, k.task_id) FROM mill.dedup_keys k
WHERE NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = k.task_id)
UNION ALL
SELECT format('task %s is gone and holds a permit of limit %s', p.task_id, p.limit_id) FROM mill.permits p
WHERE p.counts_until IS NULL AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = p.task_id)";

/// No transaction is prepared or idle in transaction, and no advisory lock is held.
const NO_SESSION_LEFT: &str = "
SELECT format('transaction %s is prepared', x.gid) FROM pg_prepared_xacts x
WHERE x.database = current_database()
UNION ALL
SELECT format('backend %s (%s) is idle in a transaction since %s', a.pid, a.application_name, a.xact_start)
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.state LIKE 'idle in transaction%'
    AND (current_setting('checker.fleet_gone')::boolean
        OR a.state_change < clock_timestamp() - interval '10 seconds')
UNION ALL
SELECT format('backend %s holds an advisory lock', l.pid)
FROM pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE l.locktype = 'advisory' AND d.datname = current_database() AND l.pid <> pg_backend_pid()";
