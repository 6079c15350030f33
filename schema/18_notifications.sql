-- Notifications: which events are reported to whom, and the outbox.
--
-- The transaction that causes an event inserts a row of mill.notifications for each subscription that
-- matches the event, so a notification exists exactly if the event was committed. The insert locks
-- nothing that another event could wait for. Successful tasks are not events: mill.complete does not
-- look at subscriptions.
--
-- The duty notifier of the workers delivers the rows: 20_notification_delivery.sql.

DO $$
BEGIN
    IF to_regtype('mill.notify_event') IS NULL THEN
        CREATE TYPE mill.notify_event AS ENUM ('attempt_failed', 'task_failed', 'run_failed', 'run_succeeded',
            'run_recovered', 'schedule_missed', 'late', 'queue_backlog', 'worker_lost', 'approval_needed', 'test');
    END IF;
END
$$;
COMMENT ON TYPE mill.notify_event IS
    'Event that can be reported. attempt_failed: an attempt of a task failed. task_failed: a task ended as failed, '
    'timed_out, lost or unknown. run_recovered: a run succeeded after the previous run of the same schedule or of the '
    'same jobs failed. late: a run has not ended by its deadline. queue_backlog: a queue passed a threshold of '
    'the subscription, or is below it again. approval_needed: a task of a run waits for approval. '
    'test: a message that an operator requested';

CREATE TABLE IF NOT EXISTS mill.subscriptions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name mill.label NOT NULL UNIQUE,
    events mill.notify_event[] NOT NULL CONSTRAINT events_given CHECK (cardinality(events) > 0),
    queue mill.queue_name,
    job mill.label,
    schedule text,
    tag text,
    task mill.label,
    destination mill.profile_name,
    channel text CONSTRAINT channel_length CHECK (octet_length(channel) BETWEEN 1 AND 63)
        CONSTRAINT channel_of_subscribers CHECK (channel <> 'mill'),
    statement mill.statement,
    task_queue mill.queue_name,
    run_as mill.profile_name,
    min_pending integer CONSTRAINT min_pending_range CHECK (min_pending BETWEEN 1 AND 100000),
    min_age interval CONSTRAINT min_age_range CHECK (min_age > '0'),
    rate_messages integer CONSTRAINT rate_messages_range CHECK (rate_messages BETWEEN 1 AND 1000000),
    rate_period interval CONSTRAINT rate_period_range CHECK (rate_period BETWEEN '1 second' AND '365 days'),
    enabled boolean NOT NULL DEFAULT true,
    description text,
    created_by text NOT NULL DEFAULT session_user,
    created_at timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT one_destination CHECK (num_nonnulls(destination, channel, statement) = 1),
    CONSTRAINT task_settings CHECK (statement IS NOT NULL OR num_nonnulls(task_queue, run_as) = 0),
    CONSTRAINT rate_whole CHECK (num_nonnulls(rate_messages, rate_period) IN (0, 2)),
    CONSTRAINT backlog_threshold
        CHECK (('queue_backlog' = ANY (events)) = (num_nonnulls(min_pending, min_age) > 0))
);
COMMENT ON TABLE mill.subscriptions IS
    'Subscriptions: events that are reported, and the destination, channel or task that receives them. Set with '
    'mill.set_subscription';
COMMENT ON COLUMN mill.subscriptions.queue IS
    'Reports only events of this queue. queue, job, schedule, tag and task have to match all; null: any';
COMMENT ON COLUMN mill.subscriptions.task IS 'Reports only events of tasks with this name; null: any';
COMMENT ON COLUMN mill.subscriptions.destination IS
    'Name of a destination in the configuration of workers, [destinations.NAME]. Its address and its secrets are not '
    'in the database';
COMMENT ON COLUMN mill.subscriptions.channel IS 'Channel to NOTIFY';
COMMENT ON COLUMN mill.subscriptions.statement IS
    'Statement of the task that is enqueued for each message; $1 is the message as jsonb';
COMMENT ON COLUMN mill.subscriptions.task_queue IS 'Queue of this task; null: default';
COMMENT ON COLUMN mill.subscriptions.run_as IS 'Profile of this task; null: none';
COMMENT ON COLUMN mill.subscriptions.min_pending IS
    'queue_backlog: number of pending tasks from which a queue has a backlog; null: any number';
COMMENT ON COLUMN mill.subscriptions.min_age IS
    'queue_backlog: wait of the oldest pending task from which a queue has a backlog; null: any wait';
COMMENT ON COLUMN mill.subscriptions.rate_messages IS
    'Maximum number of messages per rate_period; null: no limit. If more notifications are due, one message '
    'summarizes all of them';
GRANT SELECT ON mill.subscriptions TO mill_worker;

-- Only the senders lock its rows, never a transaction that causes an event.
CREATE TABLE IF NOT EXISTS mill.subscription_state (
    subscription_id bigint PRIMARY KEY,
    window_started_at timestamptz,
    window_messages integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    retry_at timestamptz,
    last_error text,
    last_error_at timestamptz,
    last_sent_at timestamptz,
    messages_sent bigint NOT NULL DEFAULT 0,
    backlog_checked_at timestamptz
);
COMMENT ON TABLE mill.subscription_state IS 'State of the delivery of each subscription';
COMMENT ON COLUMN mill.subscription_state.window_started_at IS
    'Start of the current rate_period, in which window_messages messages were attempted';
COMMENT ON COLUMN mill.subscription_state.failures IS
    'Number of failed messages since the last one that was delivered';
COMMENT ON COLUMN mill.subscription_state.retry_at IS 'Time before which no message is attempted; null: none';
COMMENT ON COLUMN mill.subscription_state.last_error IS
    'Error of the last message that failed, since the last one that was delivered; null: none';
GRANT SELECT ON mill.subscription_state TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.notifications (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription_id bigint NOT NULL,
    event mill.notify_event NOT NULL,
    document jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_attempt_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    retry_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '3 days',
    attempts integer NOT NULL DEFAULT 0,
    message_id uuid,
    last_error text,
    sent_at timestamptz,
    dead_at timestamptz,
    CONSTRAINT one_end CHECK (num_nonnulls(sent_at, dead_at) < 2)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
COMMENT ON TABLE mill.notifications IS
    'Outbox: one row per event and subscription. Delivered rows are deleted after a day, undeliverable ones after '
    'settings.history_retention';
COMMENT ON COLUMN mill.notifications.document IS
    'The event as JSON. It never has statements or parameters, and no error messages while settings.hide_statements '
    'is set';
COMMENT ON COLUMN mill.notifications.next_attempt_at IS
    'Earliest time of the next attempt. While a worker sends the notification, this is the time at which another '
    'worker may send it again';
COMMENT ON COLUMN mill.notifications.message_id IS
    'Message that contains the notification, new at each attempt; null: not attempted yet';
COMMENT ON COLUMN mill.notifications.dead_at IS 'Time at which the attempts ended without success; null: they did not';
-- Used by mill.take_messages. It does not contain next_attempt_at, so that an attempt need not update it.
CREATE INDEX IF NOT EXISTS notifications_due ON mill.notifications (subscription_id, id)
    WHERE sent_at IS NULL AND dead_at IS NULL;
-- Used by mill.prune_notifications.
CREATE INDEX IF NOT EXISTS notifications_ended ON mill.notifications (coalesce(sent_at, dead_at))
    WHERE sent_at IS NOT NULL OR dead_at IS NOT NULL;
-- Used by mill.subscription_status and mill.retry_notifications.
CREATE INDEX IF NOT EXISTS notifications_dead ON mill.notifications (subscription_id, id) WHERE dead_at IS NOT NULL;
GRANT SELECT ON mill.notifications TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.backlog_notices (
    subscription_id bigint NOT NULL,
    queue text NOT NULL,
    began_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (subscription_id, queue)
);
COMMENT ON TABLE mill.backlog_notices IS 'Queues whose backlog has been reported and has not ended';

-- Events ------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.notification_document(event mill.notify_event, subscription text, document jsonb)
RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object('event', event, 'time', clock_timestamp(), 'subscription', subscription)
        || CASE WHEN s.hide_statements THEN document - '{message,errors}'::text[] ELSE document END)
    FROM mill.settings s
$$;
COMMENT ON FUNCTION mill.notification_document IS
    'Returns the document of a notification. Omits error messages while settings.hide_statements is set';

CREATE OR REPLACE FUNCTION mill.notify_first(events mill.notify_event[], subject jsonb, details jsonb)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    problem text;
    inserted integer := 0;
BEGIN
    INSERT INTO mill.notifications (subscription_id, event, document)
        SELECT s.id, e.event, mill.notification_document(e.event, s.name,
            subject - 'from_subscription' || coalesce(details, '{}'))
        FROM mill.subscriptions s CROSS JOIN LATERAL (SELECT u.event
            FROM unnest(events) WITH ORDINALITY AS u(event, place)
            WHERE u.event = ANY (s.events) ORDER BY u.place LIMIT 1) AS e
        WHERE s.enabled
            AND (s.queue IS NULL OR s.queue = subject->>'queue')
            AND (s.task IS NULL OR s.task = subject->>'task')
            AND (s.schedule IS NULL OR s.schedule = subject->>'schedule')
            AND (s.job IS NULL OR lower(s.job) = lower(subject->>'job')
                OR EXISTS (SELECT FROM jsonb_path_query(subject, '$.jobs[*]') AS j(name)
                    WHERE lower(j.name #>> '{}') = lower(s.job)))
            AND (s.tag IS NULL OR subject->'tags' ? s.tag)
            -- A task of a subscription that fails would enqueue the next one, without end.
            AND NOT (s.statement IS NOT NULL AND subject ? 'from_subscription');
    GET DIAGNOSTICS inserted = ROW_COUNT;
    RETURN inserted;
EXCEPTION WHEN OTHERS THEN
    -- The caller ends a task or a run, or fires schedules: none of these may depend on a notification.
    GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT;
    RAISE WARNING 'cannot insert notifications of event %: %', events[1], problem;
    RETURN 0;
END
$$;
COMMENT ON FUNCTION mill.notify_first IS
    'As mill.notify, for several events, the most specific first: a subscription gets one notification, of the first '
    'event that it has';

CREATE OR REPLACE FUNCTION mill.notify(event mill.notify_event, subject jsonb, details jsonb DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    -- Without a subscription, this query of an empty table is the whole cost.
    IF NOT EXISTS (SELECT FROM mill.subscriptions s WHERE s.enabled AND event = ANY (s.events)) THEN
        RETURN 0;
    END IF;
    RETURN mill.notify_first(ARRAY[event], subject, details);
END
$$;
COMMENT ON FUNCTION mill.notify IS
    'Inserts a notification for each subscription that matches, in the transaction of the caller. subject: what the '
    'filters of subscriptions compare, {"queue", "task", "job", "jobs", "schedule", "tags", …}. details: the rest of '
    'the document. Never raises an error. Returns the number of notifications';
GRANT EXECUTE ON FUNCTION mill.notify TO mill_worker;

CREATE OR REPLACE FUNCTION mill.notify_attempt(task mill.tasks, outcome mill.outcome, final boolean, report jsonb)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_run record;
BEGIN
    SELECT t.job, r.jobs, r.tags, s.name AS schedule INTO of_run
        FROM mill.runs r LEFT JOIN mill.run_tasks t ON t.run_id = r.id AND t.node = task.node
            LEFT JOIN mill.schedules s ON s.id = r.schedule_id
        WHERE r.id = task.run_id AND task.node IS NOT NULL;
    PERFORM mill.notify_first(
        CASE WHEN final THEN '{task_failed,attempt_failed}' ELSE '{attempt_failed}' END::mill.notify_event[],
        jsonb_build_object('task_id', task.id, 'task', task.name, 'queue', task.queue, 'run_id', task.run_id,
            'job', of_run.job, 'jobs', of_run.jobs, 'schedule', of_run.schedule,
            'tags', nullif(coalesce((task.options).tags, '{}') || coalesce(of_run.tags, '{}'), '{}'))
            || CASE WHEN (task.options).metadata ? 'pgmill_subscription' THEN '{"from_subscription": true}'
                ELSE '{}' END::jsonb,
        jsonb_build_object('outcome', outcome, 'attempt', task.attempt, 'max_attempts',
            (mill.effective(task.options)).max_attempts, 'final', final, 'sqlstate', report->'sqlstate',
            'message', left(report->>'message', 1000),
            'traceparent', (task.options).traceparent));
END
$$;
COMMENT ON FUNCTION mill.notify_attempt IS
    'Inserts the notifications of an attempt that did not succeed, for mill.record_attempt';
GRANT EXECUTE ON FUNCTION mill.notify_attempt TO mill_worker;
