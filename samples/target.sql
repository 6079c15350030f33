-- Tasks in another database, exactly once. They need two preparations (docs/targets.md): `pgmill target init` in that
-- database, and a section [targets.sample_target] in the configuration of the workers.
SELECT mill.set_target('sample_target', allowed => ARRAY[current_user], description => 'The data warehouse');

-- The table is in the target. The effects of the task and its receipt commit there together.
SELECT mill.enqueue('CREATE TABLE IF NOT EXISTS sample_orders (id integer, loaded_at timestamptz DEFAULT now());
    INSERT INTO sample_orders VALUES (1)', run_as => 'sample_target', name => 'load in the target');

-- The tasks of a job can run in several databases. The second task starts after the first one has committed.
SELECT mill.set_job('sample across databases', '[
    {"name": "load", "statement": "SELECT 42 AS answer", "run_as": "sample_target"},
    {"name": "use", "statement": "SELECT $1::integer", "after": ["load"],
     "params": [{"$result": "load", "column": "answer"}]}]');
SELECT run_id FROM mill.start_run(ARRAY['sample across databases']);

-- Workers claim tasks of the target only while no snapshot in it is older.
SELECT mill.set_target_conditions('sample_target', max_snapshot_age => '15 minutes');
SELECT t.name, t.max_snapshot_age, c.held_back FROM mill.targets t LEFT JOIN mill.target_checks c USING (name);
