-- A staging table that is imported when 500 rows are pending, when the oldest row is ten minutes old, or
-- when there are new rows and the last import was a minute ago: the first condition that is met.
DROP TABLE IF EXISTS sample_import_rows;
CREATE TABLE sample_import_rows (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    import_status integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON sample_import_rows (created_at) WHERE import_status = 0;
-- The login of the tasks also runs the query that counts the pending rows.
GRANT SELECT, UPDATE ON sample_import_rows TO PUBLIC;

CREATE OR REPLACE PROCEDURE sample_import(reason text) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sample_import_rows SET import_status = 1 WHERE import_status = 0;
    RAISE NOTICE 'imported because of %', reason;
END
$$;

SELECT mill.set_schedule('sample import',
    'trigger(table: public.sample_import_rows, filter: "import_status = 0", age: created_at,
        rows: 500, idle: 10 min, new_rows: true, debounce: 60 s, every: 1 s)',
    'CALL sample_import($1)', task => '{"params": [{"$param": "reason"}]}',
    description => 'Imports staged rows');

INSERT INTO sample_import_rows (created_at) SELECT now() FROM generate_series(1, 500);

-- Shows whether it would fire now, and why; a moment later, the log of the schedule.
SELECT * FROM mill.schedule_test('sample import');
SELECT l.logged_at, l.event, l.reason, l.rows, l.run_id
    FROM mill.schedule_log l JOIN mill.schedules s ON s.id = l.schedule_id
    WHERE s.name = 'sample import' ORDER BY l.id;
