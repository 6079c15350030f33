-- A staging table that is imported when 500 rows wait, when the oldest has waited for ten minutes, or
-- when there is any and the last import is a minute ago: the first of these that holds.
DROP TABLE IF EXISTS sample_inbox;
CREATE TABLE sample_inbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    import_status integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON sample_inbox (created_at) WHERE import_status = 0;

CREATE OR REPLACE PROCEDURE sample_import(reason text) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sample_inbox SET import_status = 1 WHERE import_status = 0;
    RAISE NOTICE 'imported because of %', reason;
END
$$;

SELECT mill.set_schedule('sample import',
    'trigger(table: public.sample_inbox, filter: "import_status = 0", age: created_at,
        rows: 500, idle: 10 min, new_rows: true, debounce: 60 s, every: 1 s)',
    'CALL sample_import($1)', task => '{"params": [{"$param": "reason"}]}',
    description => 'Imports what was staged');

INSERT INTO sample_inbox (created_at) SELECT now() FROM generate_series(1, 500);

-- Whether it would fire now, and why; a moment later, what happened.
SELECT * FROM mill.schedule_test('sample import');
SELECT l.logged_at, l.event, l.reason, l.rows, l.run_id
    FROM mill.schedule_log l JOIN mill.schedules s ON s.id = l.schedule_id
    WHERE s.name = 'sample import' ORDER BY l.id;
