-- A task of a run that needs the approval of a person. Run with psql as a member of mill_operator.
DROP TABLE IF EXISTS sample_prices;
CREATE TABLE sample_prices (item text NOT NULL, price numeric NOT NULL, is_public boolean NOT NULL DEFAULT false);
INSERT INTO sample_prices VALUES ('apple', 0.5), ('pear', 0.6);
GRANT SELECT, UPDATE ON sample_prices TO PUBLIC;

SELECT mill.set_job('sample prices', $$[
    {"name": "sample publish", "approval": true, "approval_note": "Compare the prices with those of last week",
     "statement": "UPDATE sample_prices SET is_public = true"},
    {"name": "sample announce", "after": ["sample publish"], "statement": "SELECT count(*) FROM sample_prices WHERE is_public"}
]$$);
SELECT run_id FROM mill.start_run(ARRAY['sample prices']);

SELECT task, note, waited FROM mill.approvals_needed;
SELECT mill.why(max(id), 'sample publish') FROM mill.runs;
-- The name in the audit and in decided_by; without it, the login.
SELECT set_config('mill.actor', 'ann', false);
SELECT mill.approve(max(id), 'sample publish') FROM mill.runs;
SELECT set_config('mill.actor', '', false);
SELECT name, state, decided_by FROM mill.run_task_status WHERE run_id = (SELECT max(id) FROM mill.runs) ORDER BY node;
