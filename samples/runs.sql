-- A graph of tasks: two jobs, merged into one run.
DROP TABLE IF EXISTS sample_stage, sample_sales;
CREATE TABLE sample_stage (day date NOT NULL, amount numeric NOT NULL);
CREATE TABLE sample_sales (day date NOT NULL, parts bigint NOT NULL, amount numeric NOT NULL);
GRANT SELECT, INSERT, TRUNCATE ON sample_stage TO PUBLIC;
GRANT SELECT, INSERT ON sample_sales TO PUBLIC;

-- A value that a parent returned is a parameter of its child. A task can add tasks to its run, here one
-- per part, and make a task that waits for it wait for them as well.
SELECT mill.set_job('sample load', jsonb_build_array(
    jsonb_build_object('name', 'sample size', 'statement', 'SELECT 4 AS parts'),
    jsonb_build_object('name', 'sample split', 'after', '["sample size"]'::jsonb,
        'params', '[{"$result": "sample size", "column": "parts"}, {"$param": "day"}]'::jsonb,
        'statement', $$
            SELECT mill.add_run_task('sample part ' || n, 'INSERT INTO sample_stage VALUES ($1, $2)',
                jsonb_build_array($2::date, n * 10), before => ARRAY['sample sum'])
            FROM generate_series(1, $1::integer) AS n $$),
    jsonb_build_object('name', 'sample sum', 'after', '["sample split"]'::jsonb, 'params', '[{"$param": "day"}]'::jsonb,
        'statement', $$
            INSERT INTO sample_sales
            SELECT $1::date, count(*), sum(amount) FROM sample_stage WHERE day = $1::date $$),
    jsonb_build_object('name', 'sample tidy', 'statement', 'TRUNCATE sample_stage', 'ignore_failure', true,
        'after', '[{"task": "sample sum", "expected": "finished"}]'::jsonb)),
    description => 'Loads a day in parts');
SELECT mill.set_job('sample report', $$[
    {"name": "sample report", "statement": "SELECT day, amount FROM sample_sales"}
]$$);
-- Applies to every run that contains both tasks.
SELECT mill.set_dependency('sample report', 'sample sum');

SELECT run_id, dropped FROM mill.start_run(ARRAY['sample load', 'sample report'], '{"day": "2026-12-01"}');

SELECT id, jobs, state, tasks, waiting, released, succeeded FROM mill.run_status ORDER BY id DESC LIMIT 1;
SELECT name, state FROM mill.run_task_status
    WHERE run_id = (SELECT max(id) FROM mill.runs) ORDER BY node;
SELECT mill.why(max(id), 'sample report') FROM mill.runs;
SELECT task, distance FROM mill.upstream('sample report');
