-- Subscriptions: functions for operators, and status for viewers.
--
-- Each function records the change in mill.audit.

CREATE OR REPLACE FUNCTION mill.check_filters(subscription mill.subscriptions) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong record;
BEGIN
    -- A filter that an event does not have matches nothing.
    SELECT e.event, f.filter, a.allowed INTO wrong
        FROM unnest(subscription.events) AS e(event)
            CROSS JOIN LATERAL (SELECT CASE
                WHEN e.event IN ('attempt_failed', 'task_failed', 'approval_needed')
                    THEN '{queue,task,job,schedule,tag}'
                WHEN e.event IN ('run_failed', 'run_succeeded', 'run_recovered', 'late', 'schedule_missed')
                    THEN '{job,schedule,tag}'
                WHEN e.event = 'queue_backlog' THEN '{queue}' ELSE '{}' END::text[] AS allowed) AS a
            CROSS JOIN LATERAL (VALUES ('queue', subscription.queue::text), ('task', subscription.task),
                ('job', subscription.job), ('schedule', subscription.schedule), ('tag', subscription.tag))
                AS f(filter, value)
        WHERE f.value IS NOT NULL AND f.filter <> ALL (a.allowed) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'event % has no %', wrong.event, wrong.filter USING ERRCODE = '22023',
            HINT = CASE WHEN wrong.allowed = '{}' THEN 'Use another subscription, without filters, for this event.'
                ELSE format('Its filters are %s. Use another subscription for this event.',
                    array_to_string(wrong.allowed, ', ')) END;
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_filters IS
    'Raises an error if an event of the subscription lacks the subject of a filter, for mill.set_subscription';

CREATE OR REPLACE FUNCTION mill.check_subscription(subscription mill.subscriptions) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kinds integer := num_nonnulls(subscription.destination, subscription.channel, subscription.statement);
BEGIN
    IF coalesce(cardinality(subscription.events), 0) = 0 THEN
        RAISE EXCEPTION 'subscription "%" has no events', subscription.name USING ERRCODE = '22023',
            HINT = format('Set events to one or more of %s.',
                array_to_string(array_remove(enum_range(NULL::mill.notify_event), 'test'), ', '));
    ELSIF 'test' = ANY (subscription.events) THEN
        RAISE EXCEPTION 'test is not an event to subscribe to' USING ERRCODE = '22023',
            HINT = 'Every subscription receives its tests: SELECT mill.test_subscription(name).';
    ELSIF kinds <> 1 THEN
        RAISE EXCEPTION 'subscription "%" has % receivers; it needs exactly one', subscription.name, kinds
            USING ERRCODE = '22023', HINT = 'Set one of destination, channel and statement.';
    ELSIF subscription.channel = 'mill' THEN
        RAISE EXCEPTION 'channel mill is the channel of the workers' USING ERRCODE = '22023';
    ELSIF 'queue_backlog' = ANY (subscription.events) <>
        (num_nonnulls(subscription.min_pending, subscription.min_age) > 0)
    THEN
        RAISE EXCEPTION 'min_pending and min_age are the thresholds of queue_backlog' USING ERRCODE = '22023',
            HINT = 'With queue_backlog, set at least one of them; without it, none.';
    ELSIF subscription.statement IS NULL AND num_nonnulls(subscription.task_queue, subscription.run_as) > 0 THEN
        RAISE EXCEPTION 'task_queue and run_as are settings of a statement' USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_filters(subscription);
END
$$;
COMMENT ON FUNCTION mill.check_subscription IS
    'Raises an error if the settings of a subscription contradict each other, for mill.set_subscription';

CREATE OR REPLACE FUNCTION mill.with_subscription_options(subscription mill.subscriptions, options jsonb)
RETURNS mill.subscriptions
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    put mill.subscriptions := subscription;
BEGIN
    -- A new receiver replaces the former one.
    IF num_nonnulls(options->>'destination', options->>'channel', options->>'statement') > 0 THEN
        put.destination := NULL;
        put.channel := NULL;
        put.statement := NULL;
        IF options->>'statement' IS NULL THEN
            put.task_queue := NULL;
            put.run_as := NULL;
        END IF;
    END IF;
    put := jsonb_populate_record(put, options);
    put.enabled := coalesce(put.enabled, true);
    put.events := ARRAY(SELECT DISTINCT e FROM unnest(put.events) AS e ORDER BY e);
    put.run_as := nullif(put.run_as, '');
    put.rate_period := CASE WHEN put.rate_messages IS NOT NULL THEN coalesce(put.rate_period, '1 minute') END;
    put.changed_at := now();
    RETURN put;
END
$$;
COMMENT ON FUNCTION mill.with_subscription_options IS
    'Returns the subscription with these options, for mill.set_subscription. Omitted options are unchanged';

CREATE OR REPLACE FUNCTION mill.set_subscription(name text, options jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    put mill.subscriptions;
    before jsonb;
    existed boolean;
BEGIN
    PERFORM mill.check_keys(options, '{events,queue,job,schedule,tag,task,destination,channel,statement,task_queue,
        run_as,min_pending,min_age,rate_messages,rate_period,enabled,description}');
    SELECT s.* INTO put FROM mill.subscriptions s WHERE s.name = set_subscription.name FOR UPDATE;
    existed := FOUND;
    IF existed THEN
        before := to_jsonb(put) - 'statement';
    ELSE
        put.name := set_subscription.name;
        put.enabled := true;
        put.created_by := session_user;
        put.created_at := now();
        -- Messages to people are limited, unless the caller sets another limit or none.
        IF options->>'destination' IS NOT NULL THEN
            put.rate_messages := 10;
            put.rate_period := '1 minute';
        END IF;
    END IF;
    put := mill.with_subscription_options(put, options);
    PERFORM mill.check_subscription(put);
    IF put.statement IS NOT NULL THEN
        put.statement := mill.check_statement(put.statement, '[{}]');
    END IF;
    IF put.run_as IS NOT NULL THEN
        PERFORM mill.check_profile(put.run_as), mill.check_routine(put.run_as, put.statement);
    END IF;
    IF existed THEN
        IF before - 'changed_at' = to_jsonb(put) - '{statement,changed_at}'::text[]
            AND NOT EXISTS (SELECT FROM mill.subscriptions s
                WHERE s.id = put.id AND s.statement IS DISTINCT FROM put.statement)
        THEN
            RETURN false;
        END IF;
        UPDATE mill.subscriptions s SET (events, queue, job, schedule, tag, task, destination, channel, statement,
                task_queue, run_as, min_pending, min_age, rate_messages, rate_period, enabled, description, changed_at)
            = (put.events, put.queue, put.job, put.schedule, put.tag, put.task, put.destination, put.channel,
                put.statement, put.task_queue, put.run_as, put.min_pending, put.min_age, put.rate_messages,
                put.rate_period, put.enabled, put.description, put.changed_at)
            WHERE s.id = put.id;
        UPDATE mill.subscription_state d SET retry_at = NULL WHERE d.subscription_id = put.id;
    ELSE
        INSERT INTO mill.subscriptions (name, events, queue, job, schedule, tag, task, destination, channel, statement,
                task_queue, run_as, min_pending, min_age, rate_messages, rate_period, enabled, description)
            VALUES (put.name, put.events, put.queue, put.job, put.schedule, put.tag, put.task, put.destination,
                put.channel, put.statement, put.task_queue, put.run_as, put.min_pending, put.min_age,
                put.rate_messages, put.rate_period, put.enabled, put.description)
            RETURNING id INTO put.id;
        INSERT INTO mill.subscription_state (subscription_id) VALUES (put.id);
    END IF;
    -- A backlog that the subscription no longer watches is not reported as ended.
    DELETE FROM mill.backlog_notices b WHERE b.subscription_id = put.id
        AND (num_nonnulls(put.min_pending, put.min_age) = 0 OR b.queue IS DISTINCT FROM coalesce(put.queue, b.queue));
    PERFORM mill.record_change('set_subscription', 'subscription ' || put.name, before, options - 'statement');
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.set_subscription IS
    'Creates or changes a subscription. Returns whether anything changed. options: {"events": ["task_failed", …], '
    'filters "queue", "job", "schedule", "tag", "task"; one of "destination" (configured at workers), "channel" '
    '(NOTIFY) and "statement" (a task, with "task_queue" and "run_as"); thresholds of queue_backlog "min_pending", '
    '"min_age"; "rate_messages" per "rate_period"; "enabled", "description"}. Omitted options are unchanged, null '
    'removes an option';
GRANT EXECUTE ON FUNCTION mill.set_subscription TO mill_operator;

CREATE OR REPLACE FUNCTION mill.remove_subscription(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    gone bigint;
BEGIN
    DELETE FROM mill.subscriptions s WHERE s.name = remove_subscription.name RETURNING s.id INTO gone;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM mill.subscription_state d WHERE d.subscription_id = gone;
    DELETE FROM mill.backlog_notices b WHERE b.subscription_id = gone;
    -- mill.prune_notifications deletes the ones that were sent.
    DELETE FROM mill.notifications n WHERE n.subscription_id = gone AND n.sent_at IS NULL AND n.dead_at IS NULL;
    DELETE FROM mill.notifications n WHERE n.subscription_id = gone AND n.dead_at IS NOT NULL;
    PERFORM mill.record_audit('remove_subscription', 'subscription ' || remove_subscription.name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.remove_subscription IS
    'Removes a subscription and its undelivered notifications. Returns false if it does not exist';
GRANT EXECUTE ON FUNCTION mill.remove_subscription TO mill_operator;

CREATE OR REPLACE FUNCTION mill.enable_subscription(name text, enabled boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    UPDATE mill.subscriptions s SET enabled = enable_subscription.enabled, changed_at = now()
        WHERE s.name = enable_subscription.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_audit('enable_subscription', 'subscription ' || enable_subscription.name,
        jsonb_build_object('enabled', enable_subscription.enabled));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.enable_subscription IS
    'Enables or disables a subscription. A disabled one gets no notifications, and those it has are not sent. Returns '
    'false if it does not exist';
GRANT EXECUTE ON FUNCTION mill.enable_subscription TO mill_operator;

CREATE OR REPLACE FUNCTION mill.test_subscription(name text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    s mill.subscriptions;
    inserted bigint;
BEGIN
    SELECT x.* INTO s FROM mill.subscriptions x WHERE x.name = test_subscription.name;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF NOT s.enabled THEN
        RAISE EXCEPTION 'subscription "%" is disabled', s.name USING ERRCODE = '55000',
            HINT = 'Enable it with pgmill subscription enable.';
    END IF;
    INSERT INTO mill.notifications (subscription_id, event, document)
        VALUES (s.id, 'test', mill.notification_document('test', s.name,
            jsonb_build_object('requested_by', coalesce(left(nullif(current_setting('mill.actor', true), ''), 200),
                session_user))))
        RETURNING id INTO inserted;
    UPDATE mill.subscription_state d SET retry_at = NULL WHERE d.subscription_id = s.id;
    PERFORM mill.record_audit('test_subscription', 'subscription ' || s.name);
    RETURN inserted;
END
$$;
COMMENT ON FUNCTION mill.test_subscription IS
    'Sends a message of event test to a subscription. Returns the id of the notification; null: the subscription does '
    'not exist';
GRANT EXECUTE ON FUNCTION mill.test_subscription TO mill_operator;

CREATE OR REPLACE FUNCTION mill.retry_notifications(subscription text DEFAULT NULL, ids bigint[] DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    chosen bigint[];
    retried integer;
BEGIN
    chosen := ARRAY(SELECT s.id FROM mill.subscriptions s
        WHERE retry_notifications.subscription IS NULL OR s.name = retry_notifications.subscription);
    UPDATE mill.notifications n SET dead_at = NULL, attempts = 0, next_attempt_at = now(),
            retry_until = now() + interval '3 days'
        WHERE n.subscription_id = ANY (chosen) AND n.dead_at IS NOT NULL
            AND (retry_notifications.ids IS NULL OR n.id = ANY (retry_notifications.ids));
    GET DIAGNOSTICS retried = ROW_COUNT;
    -- What is not dead and waits because of a failure is attempted now, too.
    UPDATE mill.subscription_state d SET retry_at = NULL WHERE d.subscription_id = ANY (chosen) AND d.failures > 0;
    PERFORM mill.record_audit('retry_notifications', coalesce('subscription ' || retry_notifications.subscription,
        'subscriptions'), jsonb_build_object('notifications', retried));
    RETURN retried;
END
$$;
COMMENT ON FUNCTION mill.retry_notifications IS
    'Attempts dead notifications again: those with these ids, of this subscription, or all. Ends the wait after '
    'failures of these subscriptions. Returns the number of dead notifications';
GRANT EXECUTE ON FUNCTION mill.retry_notifications TO mill_operator;

-- Status ------------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW mill.subscription_status AS
    SELECT s.id, s.name, s.events, s.queue, s.job, s.schedule, s.tag, s.task,
        CASE WHEN s.destination IS NOT NULL THEN 'destination' WHEN s.channel IS NOT NULL THEN 'channel'
            ELSE 'task' END AS kind,
        s.destination, s.channel, CASE WHEN (SELECT mill.sees_statements()) THEN s.statement END AS statement,
        s.task_queue, s.run_as, s.min_pending, s.min_age, s.rate_messages, s.rate_period, s.enabled, s.description,
        s.created_by, s.created_at, s.changed_at, d.messages_sent, d.last_sent_at, d.failures, d.last_error,
        d.last_error_at, d.retry_at, w.pending, w.oldest_pending_at, x.dead,
        CASE WHEN s.destination IS NOT NULL THEN (SELECT count(*) FROM mill.workers v
            WHERE s.destination = ANY (v.destinations) AND now() - v.heartbeat_at < v.orphan_timeout) END AS workers
    FROM mill.subscriptions s JOIN mill.subscription_state d ON d.subscription_id = s.id
        CROSS JOIN LATERAL (SELECT count(*) AS pending, min(p.created_at) AS oldest_pending_at
            FROM (SELECT n.created_at FROM mill.notifications n WHERE n.subscription_id = s.id AND n.sent_at IS NULL
                AND n.dead_at IS NULL ORDER BY n.id LIMIT 10000) AS p) AS w
        CROSS JOIN LATERAL (SELECT count(*) AS dead FROM (SELECT FROM mill.notifications n
            WHERE n.subscription_id = s.id AND n.dead_at IS NOT NULL LIMIT 10000) AS p) AS x;
COMMENT ON VIEW mill.subscription_status IS
    'Subscriptions with their settings and the state of the delivery. pending, dead: number of notifications, at most '
    '10000. workers: number of live workers that have the destination';
GRANT SELECT ON mill.subscription_status TO mill_worker;

CREATE OR REPLACE VIEW mill.visible_notifications AS
    SELECT n.id, n.subscription_id, coalesce(s.name, n.document->>'subscription') AS subscription, n.event,
        CASE WHEN (SELECT mill.sees_statements()) THEN n.document ELSE n.document - '{message,errors}'::text[]
            END AS document,
        CASE WHEN n.sent_at IS NOT NULL THEN 'sent' WHEN n.dead_at IS NOT NULL THEN 'dead' ELSE 'pending' END AS state,
        n.created_at, n.next_attempt_at, n.attempts, n.last_error, n.sent_at, n.dead_at
    FROM mill.notifications n LEFT JOIN mill.subscriptions s ON s.id = n.subscription_id;
COMMENT ON VIEW mill.visible_notifications IS
    'Notifications for mill_viewer: pending, sent within a day, or dead. Hides error messages if '
    'settings.hide_statements is set';
