-- Delivery of notifications: claim, end of an attempt, backlogs.
--
-- A sender claims the notifications of a message with next_attempt_at in the future, sends the message
-- without an open transaction, and then records the result. If the sender dies in between, another one
-- sends the notifications again after a minute: each message is delivered at least once. A message to a
-- channel or a task is delivered in the transaction that marks its notifications as sent: exactly once.
--
-- The row of mill.subscription_state is locked during a claim, so that the workers together do not exceed
-- the rate of a subscription.

CREATE OR REPLACE FUNCTION mill.delivery_backoff(failures integer) RETURNS interval
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT least(interval '15 minutes', interval '5 s' * 2 ^ least(failures - 1, 10)) * (0.5 + random())
$$;
COMMENT ON FUNCTION mill.delivery_backoff IS
    'Returns the wait after this many failures: 5 seconds, doubled with each failure, up to 15 minutes, with jitter';

CREATE OR REPLACE FUNCTION mill.digest_document(subscription mill.subscriptions, message_id uuid, ids bigint[])
RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH included AS MATERIALIZED (
        SELECT n.id, n.event, n.document, n.created_at FROM mill.notifications n
        WHERE n.id = ANY (ids) AND n.message_id = digest_document.message_id
    ), grouped AS (
        SELECT i.event, i.document->>'sqlstate' AS sqlstate, left(i.document->>'message', 200) AS message,
            count(*) AS count
        FROM included i GROUP BY 1, 2, 3 ORDER BY count(*) DESC, 1, 2, 3 LIMIT 10
    )
    SELECT jsonb_build_object('event', 'digest', 'time', clock_timestamp(), 'subscription', subscription.name,
        'count', (SELECT count(*) FROM included), 'first_at', (SELECT min(i.created_at) FROM included i),
        'last_at', (SELECT max(i.created_at) FROM included i),
        'events', (SELECT jsonb_agg(jsonb_strip_nulls(to_jsonb(g))) FROM grouped g),
        'samples', (SELECT jsonb_agg(s.document) FROM (SELECT i.document FROM included i ORDER BY i.id LIMIT 5) AS s))
$$;
COMMENT ON FUNCTION mill.digest_document IS
    'Returns one document for many notifications: their number by event and error, and the first five of them';

CREATE OR REPLACE FUNCTION mill.take_messages(subscription mill.subscriptions, state mill.subscription_state,
    max_messages integer, expires_in interval, keeps_incidents boolean)
RETURNS TABLE (message_id uuid, ids bigint[], document jsonb)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    -- Bounds the number of notifications of a digest.
    max_count CONSTANT integer := 10000;
    left_in_window integer := max_messages;
    due bigint[];
    joined bigint[] := '{}';
    one bigint;
BEGIN
    IF subscription.rate_messages IS NOT NULL THEN
        IF coalesce(state.window_started_at <= now() - subscription.rate_period, true) THEN
            state.window_started_at := now();
            state.window_messages := 0;
        ELSIF state.window_started_at > clock_timestamp() THEN
            -- The clock was set back. The messages of the window count for one window from now.
            state.window_started_at := now();
        END IF;
        left_in_window := subscription.rate_messages - state.window_messages;
        IF left_in_window <= 0 THEN
            UPDATE mill.subscription_state d
                SET retry_at = state.window_started_at + subscription.rate_period,
                    window_started_at = state.window_started_at
                WHERE d.subscription_id = subscription.id;
            RETURN;
        END IF;
    END IF;
    due := ARRAY(SELECT n.id FROM mill.notifications n
        WHERE n.subscription_id = subscription.id AND n.sent_at IS NULL AND n.dead_at IS NULL
            AND (n.attempts = 0 OR n.next_attempt_at <= now() OR n.next_attempt_at > now() + interval '23 minutes')
        ORDER BY n.id LIMIT CASE WHEN subscription.rate_messages IS NULL THEN max_messages ELSE max_count END);
    IF subscription.rate_messages IS NOT NULL AND cardinality(due) > left_in_window THEN
        -- No digest resolves the incident of a failure, so each recovery is a message of its own.
        joined := ARRAY(SELECT n.id FROM mill.notifications n WHERE n.id = ANY (due)
            AND NOT (keeps_incidents AND n.document @> '{"resolved": true}') ORDER BY n.id);
        -- The last message of the window goes to the oldest notification.
        IF cardinality(joined) < 2 OR left_in_window = 1 AND due[1] < joined[1] THEN
            joined := '{}';
        END IF;
    END IF;
    IF cardinality(joined) > 0 THEN
        message_id := gen_random_uuid();
        ids := joined;
        UPDATE mill.notifications n SET message_id = take_messages.message_id, attempts = n.attempts + 1,
                next_attempt_at = now() + expires_in
            WHERE n.id = ANY (joined);
        document := mill.digest_document(subscription, message_id, ids)
            || jsonb_build_object('message_id', message_id);
        state.window_messages := state.window_messages + 1;
        RETURN NEXT;
        due := ARRAY(SELECT u.id FROM unnest(due) AS u(id) EXCEPT SELECT unnest(joined) ORDER BY 1);
        left_in_window := least(left_in_window, max_messages) - 1;
    END IF;
    FOREACH one IN ARRAY due[1:least(left_in_window, max_messages)] LOOP
        message_id := gen_random_uuid();
        ids := ARRAY[one];
        UPDATE mill.notifications n SET message_id = take_messages.message_id, attempts = n.attempts + 1,
                next_attempt_at = now() + expires_in
            WHERE n.id = one
            RETURNING n.document || jsonb_build_object('message_id', n.message_id, 'notification_id', n.id)
            INTO document;
        state.window_messages := state.window_messages + 1;
        RETURN NEXT;
    END LOOP;
    UPDATE mill.subscription_state d SET window_started_at = state.window_started_at,
            window_messages = state.window_messages
        WHERE d.subscription_id = subscription.id AND subscription.rate_messages IS NOT NULL;
END
$$;
COMMENT ON FUNCTION mill.take_messages IS
    'Claims due notifications of a subscription whose state is locked, and returns the messages to send: one per '
    'notification, or one digest of all if they are more than the rate allows. keeps_incidents: recoveries are not '
    'in the digest';

CREATE OR REPLACE FUNCTION mill.due_subscriptions(destinations text[], busy bigint[]) RETURNS SETOF bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.id FROM mill.subscriptions s JOIN mill.subscription_state d ON d.subscription_id = s.id
    WHERE s.enabled
        -- These times, and a wait that is too long, show that the clock was set back.
        AND (coalesce(d.retry_at <= now(), true)
            OR greatest(d.last_error_at, CASE WHEN s.rate_messages IS NOT NULL THEN d.window_started_at END)
                > clock_timestamp())
        AND (s.destination IS NULL OR s.destination = ANY (destinations)) AND s.id <> ALL (busy)
        AND EXISTS (SELECT FROM mill.notifications n WHERE n.subscription_id = s.id AND n.sent_at IS NULL
            AND n.dead_at IS NULL
            -- The first attempt is due at once, and no wait for the next one is longer than 22.5 minutes.
            AND (n.attempts = 0 OR n.next_attempt_at <= now() OR n.next_attempt_at > now() + interval '23 minutes'))
$$;
COMMENT ON FUNCTION mill.due_subscriptions IS
    'Returns the subscriptions that have due notifications, except those in busy: to channels, to tasks, and to these '
    'destinations';

CREATE OR REPLACE FUNCTION mill.notifications_due(destinations text[]) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Every worker polls this. Without subscriptions, the first query is the whole cost.
    RETURN EXISTS (SELECT FROM mill.subscriptions) AND (
        EXISTS (SELECT FROM mill.due_subscriptions(destinations, '{}'))
        OR EXISTS (SELECT FROM mill.subscriptions s JOIN mill.subscription_state d ON d.subscription_id = s.id
            WHERE s.enabled AND num_nonnulls(s.min_pending, s.min_age) > 0
                AND coalesce(d.backlog_checked_at NOT BETWEEN now() - interval '10 s' AND clock_timestamp(), true)));
END
$$;
COMMENT ON FUNCTION mill.notifications_due IS
    'Returns whether a worker with these destinations has notifications to send or backlogs to check';
GRANT EXECUTE ON FUNCTION mill.notifications_due TO mill_worker;

CREATE OR REPLACE FUNCTION mill.claim_messages(destinations text[], busy bigint[], max_subscriptions integer,
    incidents text[] DEFAULT '{}')
RETURNS TABLE (subscription_id bigint, subscription text, destination text, message_id uuid, ids bigint[],
    document jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found record;
BEGIN
    FOR found IN SELECT s, d FROM mill.subscriptions s JOIN mill.subscription_state d ON d.subscription_id = s.id
        WHERE s.destination IS NOT NULL AND s.id IN (SELECT mill.due_subscriptions(destinations, busy))
        ORDER BY random() LIMIT max_subscriptions FOR UPDATE OF d SKIP LOCKED
    LOOP
        -- A sender attempts these messages one after another, with a time limit of 10 s each.
        RETURN QUERY SELECT (found.s).id, (found.s).name::text, (found.s).destination::text, m.message_id, m.ids,
                m.document
            FROM mill.take_messages(found.s, found.d, 4, interval '60 s',
                (found.s).destination = ANY (incidents)) AS m;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.claim_messages IS
    'Claims messages to these destinations, up to four per subscription, for a minute. busy: subscriptions to leave '
    'out, because the caller is sending their messages. incidents: those of the destinations to which a recovery is a '
    'message of its own, because they may keep incidents';
GRANT EXECUTE ON FUNCTION mill.claim_messages TO mill_worker;

CREATE OR REPLACE FUNCTION mill.message_sent(subscription_id bigint, message_id uuid, ids bigint[]) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    marked boolean;
BEGIN
    UPDATE mill.notifications n SET sent_at = clock_timestamp(), dead_at = NULL, last_error = NULL
        WHERE n.id = ANY (ids) AND n.message_id = message_sent.message_id;
    marked := FOUND;
    UPDATE mill.subscription_state d SET failures = 0, last_error = NULL, last_error_at = NULL,
            last_sent_at = clock_timestamp(), messages_sent = d.messages_sent + 1,
            retry_at = CASE WHEN d.failures = 0 THEN d.retry_at END
        WHERE d.subscription_id = message_sent.subscription_id;
    RETURN marked;
END
$$;
COMMENT ON FUNCTION mill.message_sent IS
    'Records that a message was delivered. Returns false if another sender has claimed its notifications since';
GRANT EXECUTE ON FUNCTION mill.message_sent TO mill_worker;

CREATE OR REPLACE FUNCTION mill.message_failed(subscription_id bigint, message_id uuid, ids bigint[], error text,
    rejected boolean, retry_after interval DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.notifications n SET last_error = error,
            dead_at = CASE WHEN n.retry_until <= now() OR rejected AND n.attempts >= 10 THEN clock_timestamp() END,
            next_attempt_at = CASE WHEN rejected THEN now() + mill.delivery_backoff(n.attempts) ELSE now() END
        WHERE n.id = ANY (ids) AND n.message_id = message_failed.message_id AND n.sent_at IS NULL;
    UPDATE mill.subscription_state d SET failures = d.failures + 1, last_error = error,
            last_error_at = clock_timestamp(), retry_at = CASE WHEN rejected THEN d.retry_at
                -- Without retry_after, least would return the day.
                ELSE now() + greatest(mill.delivery_backoff(d.failures + 1),
                    CASE WHEN retry_after IS NOT NULL THEN least(retry_after, '1 day') END) END
        WHERE d.subscription_id = message_failed.subscription_id;
END
$$;
COMMENT ON FUNCTION mill.message_failed IS
    'Records that a message was not delivered. rejected: the receiver refuses this message, so the other messages of '
    'the subscription do not wait; after ten attempts its notifications are dead. Otherwise the whole subscription '
    'waits, at least retry_after. Notifications are dead after three days in either case';
GRANT EXECUTE ON FUNCTION mill.message_failed TO mill_worker;

CREATE OR REPLACE FUNCTION mill.message_released(message_id uuid, ids bigint[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE mill.notifications n SET attempts = n.attempts - 1, next_attempt_at = now()
    WHERE n.id = ANY (ids) AND n.message_id = message_released.message_id AND n.sent_at IS NULL
$$;
COMMENT ON FUNCTION mill.message_released IS 'Returns the notifications of a message that was not attempted';
GRANT EXECUTE ON FUNCTION mill.message_released TO mill_worker;

-- Inside the database -----------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.channel_payload(document jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    -- The server refuses payloads of 8000 bytes, and the subscription waits while the first one is refused. So every
    -- long value goes, whatever its key is: at most 25 values remain in any document.
    SELECT CASE WHEN octet_length(document::text) <= 7900 THEN document::text
        ELSE (SELECT jsonb_object_agg(e.key, e.value) || '{"truncated": true}'
            FROM jsonb_each(document - '{message,errors,events,samples,tags,jobs,note,reason}'::text[]) AS e
            WHERE octet_length(e.value::text) <= 250)::text END
$$;
COMMENT ON FUNCTION mill.channel_payload IS
    'Returns the payload of a NOTIFY. If the document is too long, omits its texts, its lists and any other '
    'value of more than 250 bytes, and adds "truncated"';

CREATE OR REPLACE FUNCTION mill.deliver(subscription mill.subscriptions, document jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_key uuid;
BEGIN
    IF subscription.channel IS NOT NULL THEN
        PERFORM pg_notify(subscription.channel, mill.channel_payload(document));
    ELSE
        -- The rights were checked when the subscription was made. Any role that may use the profile will do.
        SELECT mill.profile_key(p.key, r.oid) INTO found_key
            FROM mill.profiles p JOIN pg_roles r ON r.rolname = ANY (p.allowed)
            WHERE p.name = subscription.run_as LIMIT 1;
        -- Without a key, mill.submit enqueues a task without a profile.
        IF subscription.run_as IS NOT NULL AND NOT FOUND THEN
            RAISE EXCEPTION 'there is no profile "%" that a role may use', subscription.run_as USING ERRCODE = '22023';
        END IF;
        PERFORM mill.submit(subscription.statement, params => jsonb_build_array(document),
            options => jsonb_build_object('name', left('notify ' || subscription.name, 128),
                'queue', subscription.task_queue, 'profile', found_key, 'metadata',
                jsonb_build_object('pgmill_subscription', left(subscription.name, 512))));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.deliver IS
    'Delivers a message to a channel or as a task, in the caller''s transaction. Raises an error if the profile of the '
    'task does not exist';

CREATE OR REPLACE FUNCTION mill.deliver_in_database()
RETURNS TABLE (subscription text, kind text, messages integer, error text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found record;
    message record;
BEGIN
    -- Asynchronous commit is safe here: a crash loses the delivery and its record together, or neither.
    PERFORM set_config('synchronous_commit', 'off', true);
    FOR found IN SELECT s, d FROM mill.subscriptions s JOIN mill.subscription_state d ON d.subscription_id = s.id
        WHERE s.destination IS NULL AND s.id IN (SELECT mill.due_subscriptions('{}', '{}'))
        ORDER BY s.id LIMIT 20 FOR UPDATE OF d SKIP LOCKED
    LOOP
        subscription := (found.s).name;
        kind := CASE WHEN (found.s).channel IS NOT NULL THEN 'channel' ELSE 'task' END;
        messages := 0;
        error := NULL;
        BEGIN
            FOR message IN SELECT m.* FROM mill.take_messages(found.s, found.d, 500, interval '60 s', false) AS m LOOP
                PERFORM mill.deliver(found.s, message.document);
                PERFORM mill.message_sent((found.s).id, message.message_id, message.ids);
                messages := messages + 1;
            END LOOP;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS error = MESSAGE_TEXT;
            messages := 0;
            UPDATE mill.subscription_state d SET failures = d.failures + 1, last_error = error,
                    last_error_at = clock_timestamp(), retry_at = now() + mill.delivery_backoff(d.failures + 1),
                    -- The time of take_messages was rolled back.
                    window_started_at = CASE WHEN d.window_started_at > clock_timestamp() THEN now()
                        ELSE d.window_started_at END
                WHERE d.subscription_id = (found.s).id;
        END;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.deliver_in_database IS
    'Delivers due notifications to channels and as tasks, up to 500 per subscription. Returns the number of messages '
    'by subscription';
GRANT EXECUTE ON FUNCTION mill.deliver_in_database TO mill_worker;

-- Backlogs ----------------------------------------------------------------------------------------

-- A loose index scan finds the lanes. As in the claim, a range of one profile leaves only the index of
-- pending tasks. The head of a lane is its oldest task, unless a task was enqueued with an earlier due
-- time or returned to the queue. The scan of one queue ends at the first lane of the next one. A condition on
-- only_queue alone would read the index from its beginning, because the plan does not depend on the argument.
CREATE OR REPLACE FUNCTION mill.pending_by_queue(only_queue text, max_count integer)
RETURNS TABLE (queue text, pending bigint, oldest_age interval)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    WITH RECURSIVE lane (queue, priority, run_as) AS (
        (SELECT t.queue, t.priority, t.run_as FROM mill.tasks t
         WHERE t.state = 'pending' AND t.queue >= coalesce(only_queue, '')
         ORDER BY t.queue, t.priority, t.run_as LIMIT 1)
        UNION ALL
        SELECT next.queue, next.priority, next.run_as FROM lane CROSS JOIN LATERAL (
            SELECT t.queue, t.priority, t.run_as FROM mill.tasks t
            WHERE t.state = 'pending'
                AND (t.queue, t.priority, t.run_as) > (lane.queue, lane.priority, lane.run_as)
            ORDER BY t.queue, t.priority, t.run_as LIMIT 1) AS next
        WHERE only_queue IS NULL OR lane.queue = only_queue
    )
    SELECT l.queue::text, sum(c.count)::bigint, max(h.age)
        FROM (SELECT * FROM lane WHERE only_queue IS NULL OR lane.queue = only_queue LIMIT 1000) AS l
        CROSS JOIN LATERAL (SELECT count(*) AS count FROM (SELECT FROM mill.tasks t WHERE t.state = 'pending'
            AND t.queue = l.queue AND t.priority = l.priority AND t.run_as >= l.run_as AND t.run_as <= l.run_as
            ORDER BY t.run_as, t.id LIMIT max_count) AS few) AS c
        CROSS JOIN LATERAL (SELECT now() - t.due_at AS age FROM mill.tasks t WHERE t.state = 'pending'
            AND t.queue = l.queue AND t.priority = l.priority AND t.run_as >= l.run_as AND t.run_as <= l.run_as
            ORDER BY t.run_as, t.id LIMIT 1) AS h
    GROUP BY l.queue
$$;
COMMENT ON FUNCTION mill.pending_by_queue IS
    'Returns the queues with pending tasks, counting up to max_count tasks per lane, and the wait of the oldest task';

CREATE OR REPLACE FUNCTION mill.check_backlogs() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
DECLARE
    due bigint[];
    inserted integer;
BEGIN
    due := ARRAY(SELECT d.subscription_id FROM mill.subscription_state d
        WHERE d.subscription_id IN (SELECT x.id FROM mill.subscriptions x
                WHERE x.enabled AND num_nonnulls(x.min_pending, x.min_age) > 0)
            AND coalesce(d.backlog_checked_at NOT BETWEEN now() - interval '10 s' AND clock_timestamp(), true)
        FOR UPDATE OF d SKIP LOCKED);
    UPDATE mill.subscription_state d SET backlog_checked_at = now() WHERE d.subscription_id = ANY (due);
    -- Subscriptions with the same filter share one count. Nested loops are off, because these CTEs have no statistics.
    WITH subscribed AS MATERIALIZED (
        SELECT x.*, coalesce(x.queue, '') AS filter FROM mill.subscriptions x WHERE x.id = ANY (due)
    ), counted AS MATERIALIZED (
        SELECT u.filter, p.* FROM (SELECT s.filter, max(coalesce(s.min_pending, 1000)) AS max_count FROM subscribed s
            GROUP BY s.filter) AS u CROSS JOIN LATERAL mill.pending_by_queue(nullif(u.filter, ''), u.max_count) AS p
    ), found AS MATERIALIZED (
        SELECT s.id, s.name, c.queue, c.pending, c.oldest_age FROM subscribed s JOIN counted c ON c.filter = s.filter
            WHERE c.pending >= s.min_pending OR c.oldest_age >= s.min_age
    ), begun AS (
        INSERT INTO mill.backlog_notices (subscription_id, queue) SELECT f.id, f.queue FROM found f
        ON CONFLICT DO NOTHING RETURNING backlog_notices.subscription_id AS id, backlog_notices.queue
    ), ended AS (
        DELETE FROM mill.backlog_notices b WHERE b.subscription_id = ANY (due)
            AND NOT EXISTS (SELECT FROM found f WHERE f.id = b.subscription_id AND f.queue = b.queue)
        RETURNING b.subscription_id AS id, b.queue, b.began_at
    )
    INSERT INTO mill.notifications (subscription_id, event, document)
    SELECT n.id, 'queue_backlog', mill.notification_document('queue_backlog', n.name, n.document) FROM (
        SELECT f.id, f.name, jsonb_build_object('queue', f.queue, 'pending', f.pending, 'resolved', false,
            'oldest_seconds', round(extract(epoch FROM f.oldest_age)::numeric, 3)) AS document
        FROM begun b JOIN found f ON f.id = b.id AND f.queue = b.queue
        UNION ALL
        SELECT e.id, s.name, jsonb_build_object('queue', e.queue, 'resolved', true, 'seconds',
            round(extract(epoch FROM now() - e.began_at)::numeric, 3))
        FROM ended e JOIN subscribed s ON s.id = e.id) AS n;
    GET DIAGNOSTICS inserted = ROW_COUNT;
    RETURN inserted;
END
$$;
COMMENT ON FUNCTION mill.check_backlogs IS
    'Inserts a notification for each queue whose backlog began or ended, for subscriptions that were last checked more '
    'than 10 seconds ago. Returns the number of notifications';
GRANT EXECUTE ON FUNCTION mill.check_backlogs TO mill_worker;
