-- Purge: all waiting tasks of a queue -> finished.

CREATE OR REPLACE FUNCTION mill.purge_queue(queue text, max_count integer DEFAULT 500, after bigint DEFAULT 0,
    up_to bigint DEFAULT NULL, OUT cancelled bigint, OUT last_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    ids bigint[];
BEGIN
    -- The calls of a purge together walk the primary key once. A task that another transaction has locked is being
    -- claimed or changed, so it is left alone.
    SELECT array_agg(w.id ORDER BY w.id) INTO ids
    FROM (
        SELECT t.id FROM mill.tasks t
        WHERE t.queue = purge_queue.queue AND t.state <> 'running' AND t.id > coalesce(after, 0)
            AND t.id <= coalesce(up_to, 9223372036854775807)
        ORDER BY t.id LIMIT max_count FOR NO KEY UPDATE SKIP LOCKED
    ) AS w;
    last_id := ids[cardinality(ids)];
    SELECT count(*) FILTER (WHERE c.result = 'cancelled') INTO cancelled FROM mill.cancel_many(ids) AS c;
    IF cancelled > 0 THEN
        PERFORM mill.record_audit('purge_queue', 'queue ' || queue, jsonb_build_object('cancelled', cancelled));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.purge_queue IS
    'Cancels up to max_count tasks of the queue that are scheduled, blocked or pending, in the order of their ids. '
    'after, up_to: only ids above and up to these (null: no bound). Tasks that another transaction has locked are '
    'skipped. Returns the number of cancelled tasks, and the last id, with which to call again; null if no task was '
    'found';
GRANT EXECUTE ON FUNCTION mill.purge_queue TO mill_operator;
