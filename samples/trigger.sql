-- New rows start a task. The task has no key: a live task with that key might have read the table
-- already and would miss the new rows.
CREATE TABLE IF NOT EXISTS sample_deliveries (id integer, handled boolean DEFAULT false);
GRANT SELECT, UPDATE ON sample_deliveries TO PUBLIC;

CREATE OR REPLACE FUNCTION sample_deliveries_enqueue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mill.enqueue('UPDATE sample_deliveries SET handled = true WHERE NOT handled');
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER sample_arrives AFTER INSERT ON sample_deliveries
    FOR EACH STATEMENT EXECUTE FUNCTION sample_deliveries_enqueue();

INSERT INTO sample_deliveries (id) VALUES (1), (2), (3);
