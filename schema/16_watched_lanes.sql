-- Watched lanes: whether an enqueue has to wake a worker.
--
-- A worker with free readers looks for tasks in these lanes every few milliseconds.
--
-- An enqueue notifies the workers if no worker watches the lane of its task. A worker that has just found a task
-- watches its lanes, so tasks that follow each other closely cause no notification. All that is known about this is the
-- value of a sequence: it is visible at once, and no open transaction keeps its former values or locks it. The sequence
-- is not unlogged, because it could not be read after a failover then. Nothing depends on it: polls find all tasks.
--
-- The bits of the value, from the highest:
--   20  the millisecond at which the value expires, modulo 2^20 (17 minutes)
--   11  the worker that watches, as a number made of its id; 0 after a notification
--   32  the lanes, as a set of hashes

CREATE SEQUENCE IF NOT EXISTS mill.watched_lanes MINVALUE 0 START 0;
COMMENT ON SEQUENCE mill.watched_lanes IS
    'The lanes that a worker watches, or for which the workers have just been notified. A hint: see mill.is_watched';

CREATE OR REPLACE FUNCTION mill.lane_bit(queue text, priority mill.priority, run_as text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN 1::bigint << (hashtext(queue || priority || run_as) & 31);
END
$$;
COMMENT ON FUNCTION mill.lane_bit IS
    'Returns the set of mill.watched_lanes that contains one lane';

CREATE OR REPLACE FUNCTION mill.is_watched(lanes bigint DEFAULT 4294967295) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    watched bigint := pg_sequence_last_value('mill.watched_lanes');
BEGIN
    -- A value that expires later than any does is old.
    RETURN watched & lanes = lanes
        AND ((watched >> 43) - (date_part('epoch', clock_timestamp()) * 1000)::bigint) & 1048575 BETWEEN 1 AND 1000;
END
$$;
COMMENT ON FUNCTION mill.is_watched IS
    'Returns whether a worker watches all of these lanes, or the workers have just been notified';

CREATE OR REPLACE FUNCTION mill.set_watched(lanes bigint, worker bigint, milliseconds integer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM setval('mill.watched_lanes',
        ((((date_part('epoch', clock_timestamp()) * 1000)::bigint + milliseconds) & 1048575) << 43)
            | (worker << 32) | lanes);
END
$$;
COMMENT ON FUNCTION mill.set_watched IS
    'Sets the value of mill.watched_lanes';

CREATE OR REPLACE FUNCTION mill.wake_workers(lanes bigint DEFAULT 4294967295) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    wanted text := coalesce(current_setting('mill.notify', true), '');
BEGIN
    IF mill.is_watched(lanes) THEN
        RETURN;
    END IF;
    -- A transaction with a notification cannot be prepared for a two-phase commit, and cannot commit while the queue of
    -- notifications is full.
    IF wanted = 'off' OR wanted <> 'on' AND current_setting('max_prepared_transactions') <> '0'
        OR pg_notification_queue_usage() > 0.5
    THEN
        RETURN;
    END IF;
    -- The notification follows the commit, and may be lost with the transaction, so it holds for a short time.
    PERFORM mill.set_watched(4294967295, 0, 50), pg_notify('mill', 'work');
END
$$;
COMMENT ON FUNCTION mill.wake_workers IS
    'Notifies the workers after the commit of the transaction, unless a worker watches all of these lanes or the '
    'setting mill.notify is off. By default, does not notify if the server permits prepared transactions, because a '
    'transaction that notifies cannot be prepared';

CREATE OR REPLACE FUNCTION mill.watch_lanes(
    worker uuid, queues text[], priorities text[], run_as text[], milliseconds integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number CONSTANT bigint := greatest(1, hashtext(worker::text) & 2047);
    watching CONSTANT bigint := (pg_sequence_last_value('mill.watched_lanes') >> 32) & 2047;
    lanes CONSTANT bigint := (SELECT bit_or(mill.lane_bit(l.queue, l.priority::mill.priority, l.run_as))
        FROM unnest(queues, priorities, watch_lanes.run_as) AS l (queue, priority, run_as));
BEGIN
    IF lanes IS NULL THEN
        IF watching IN (number, 0) THEN
            PERFORM mill.set_watched(0, 0, 0);
        END IF;
        RETURN false;
    END IF;
    IF watching <> number AND watching <> 0 AND mill.is_watched(lanes) THEN
        RETURN false;
    END IF;
    PERFORM mill.set_watched(lanes, number, least(milliseconds, 1000));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.watch_lanes IS
    'Records for this time that a worker looks for tasks in these lanes every few milliseconds, so that enqueues need '
    'not notify. Returns false if another worker does so already. Without lanes, ends the watch of the worker, so that '
    'the next enqueue notifies';
GRANT EXECUTE ON FUNCTION mill.watch_lanes TO mill_worker;
