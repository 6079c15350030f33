-- Unstored data of runs: erased when the run ends.
--
-- These are params and results of tasks whose options store_params and store_output are false. While a
-- run is in progress, its tasks need them.

CREATE OR REPLACE FUNCTION mill.options_with_results(run_id bigint, params jsonb, options mill.task_options)
RETURNS mill.task_options
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM jsonb_array_elements(params) AS p
            JOIN mill.run_tasks o ON o.run_id = options_with_results.run_id AND o.name = p.value->>'$result'
            WHERE (o.options).store_output = false)
        THEN jsonb_populate_record(options, '{"store_params": false}') ELSE options END
$$;
COMMENT ON FUNCTION mill.options_with_results IS
    'Returns the options of a task whose params contain results of other tasks: if the output of one of them is not '
    'stored, the params are not stored';

CREATE OR REPLACE FUNCTION mill.erase_unstored(run_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.run_tasks t SET params = CASE WHEN (t.options).store_params IS NULL THEN t.params END,
            result = CASE WHEN (t.options).store_output IS NULL THEN t.result END
        WHERE t.run_id = erase_unstored.run_id
            AND ((t.options).store_params = false AND t.params IS NOT NULL
                OR (t.options).store_output = false AND t.result IS NOT NULL);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- The params of the run can contain values of these tasks; each task has a copy of its own values.
    UPDATE mill.runs r SET params = '{}' WHERE r.id = erase_unstored.run_id AND EXISTS (SELECT FROM mill.run_tasks t
        WHERE t.run_id = r.id AND (t.options).store_params = false);
END
$$;
COMMENT ON FUNCTION mill.erase_unstored IS
    'Erases params and results of an ended run that are not to be stored, for mill.finish_run';

CREATE OR REPLACE FUNCTION mill.check_stored(run_id bigint, nodes bigint[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    erased record;
BEGIN
    SELECT t.name INTO erased FROM mill.run_tasks t WHERE t.run_id = check_stored.run_id AND t.node = ANY (nodes)
        AND (t.options).store_params = false AND t.params IS NULL ORDER BY t.node LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the parameters of task "%" of run % were not stored', erased.name, run_id
            USING ERRCODE = '55000', HINT = 'Start a new run with enqueue --job.';
    END IF;
    SELECT t.name, o.name AS parent INTO erased FROM mill.run_tasks t
        CROSS JOIN LATERAL jsonb_array_elements(t.params) AS p
        JOIN mill.run_tasks o ON o.run_id = t.run_id AND o.name = p.value->>'$result'
        WHERE t.run_id = check_stored.run_id AND t.node = ANY (nodes) AND t.takes_results
            AND o.node <> ALL (nodes) AND o.state = 'succeeded' AND (o.options).store_output = false
        ORDER BY t.node LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the result of task "%", which task "%" of run % uses, was not stored', erased.parent,
            erased.name, run_id USING ERRCODE = '55000',
            HINT = format('pgmill run rerun %s %L runs it and all tasks after it again.', run_id, erased.parent);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_stored IS
    'Raises an error if these tasks of an ended run cannot run again, because params or results were not stored';
