-- Sequences that are behind the rows of their tables.
--
-- Logical replication copies rows and leaves sequences alone. After a switch to such a copy, enqueues fail with
-- duplicate keys, and new tasks get ids of earlier ones, which history contains. Each worker that registers repairs
-- the sequences.

CREATE OR REPLACE FUNCTION mill.sequences_behind() RETURNS TABLE (sequence text, next_id bigint, highest_id bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- The execution of a query locks all partitions that the planner does not exclude, so the bounds are constants.
    in_history CONSTANT text :=
        'SELECT max(a.task_id) FROM mill.attempts a WHERE a.finished_at >= %L AND a.finished_at < %L';
    today CONSTANT timestamptz := date_trunc('day', now(), 'UTC');
    query text;
    in_recent_days bigint;
    some_behind boolean := false;
BEGIN
    FOR sequence, query IN
        SELECT x.* FROM (
            SELECT pg_get_serial_sequence(format('mill.%I', c.relname), a.attname),
                format('SELECT max(%I) FROM mill.%I', a.attname, c.relname)
            FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE c.relnamespace = 'mill'::regnamespace AND NOT c.relispartition
                AND a.attidentity <> '' AND NOT a.attisdropped
            UNION ALL VALUES ('mill.target_epochs', 'SELECT max(t.epoch) FROM mill.targets t'),
                ('mill.added_nodes', 'SELECT max(t.node) FROM mill.run_tasks t')) AS x (name, query)
        ORDER BY x.name = 'mill.added_nodes', x.name
    LOOP
        -- The nodes have no index of their own, so their maximum takes a read of the whole table.
        CONTINUE WHEN sequence = 'mill.added_nodes' AND NOT some_behind;
        EXECUTE format('SELECT s.last_value + s.is_called::integer FROM %s s', sequence) INTO next_id;
        EXECUTE query INTO highest_id;
        IF sequence = 'mill.tasks_id_seq' THEN
            EXECUTE format(in_history, today - interval '2 days', today + interval '2 days') INTO in_recent_days;
            -- The highest id need not be in the last days: a task with a lower id may have ended later. That matters
            -- only if the sequence is behind, and if it may be.
            IF next_id = 1 OR in_recent_days IS NULL OR next_id <= in_recent_days THEN
                EXECUTE format(in_history, today - interval '400 days', today + interval '2 days')
                    INTO in_recent_days;
            END IF;
            highest_id := greatest(highest_id, in_recent_days);
        END IF;
        IF next_id <= highest_id THEN
            some_behind := true;
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.sequences_behind IS
    'Returns the sequences whose next value is not higher than the highest value in the tables, as after a switch to '
    'a copy that logical replication has made. For ids of tasks, this includes the history of the last 400 days';
GRANT EXECUTE ON FUNCTION mill.sequences_behind TO mill_viewer, mill_worker;

CREATE OR REPLACE FUNCTION mill.repair_sequences() RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    locked text[] := ARRAY(SELECT b.sequence FROM mill.sequences_behind() AS b);
    repaired text[] := '{}';
    changes jsonb := '{}';
    behind record;
    name text;
BEGIN
    -- This changes nothing. It waits for the transactions that have taken a value, whose rows are not visible yet, and
    -- lets no other session take one until the end of this transaction.
    FOREACH name IN ARRAY locked LOOP
        EXECUTE format('ALTER SEQUENCE %s NO CYCLE', name);
    END LOOP;
    IF locked <> '{}' THEN
        FOR behind IN SELECT b.* FROM mill.sequences_behind() AS b WHERE b.sequence = ANY (locked) LOOP
            EXECUTE format('ALTER SEQUENCE %s RESTART WITH %s', behind.sequence, behind.highest_id + 1);
            repaired := repaired || behind.sequence;
            changes := changes || jsonb_build_object(behind.sequence,
                jsonb_build_object('old', behind.next_id, 'new', behind.highest_id + 1));
        END LOOP;
    END IF;
    -- Comes last: the sequence of mill.audit can be one of those that were behind.
    IF repaired <> '{}' THEN
        PERFORM mill.record_audit('repair_sequences', 'sequences', changes);
    END IF;
    RETURN repaired;
END
$$;
COMMENT ON FUNCTION mill.repair_sequences IS
    'Moves the sequences that mill.sequences_behind lists past the highest value in the tables, and never moves a '
    'sequence back. Waits for transactions that have taken a value, for up to two seconds per sequence. Returns the '
    'names of the sequences';
GRANT EXECUTE ON FUNCTION mill.repair_sequences TO mill_operator, mill_worker;
