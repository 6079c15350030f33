-- New rows start a task. The task has no key: a live task with that key might have read the table
-- already and would miss the new rows.
CREATE TABLE IF NOT EXISTS sample_inbox (id integer, handled boolean DEFAULT false);

CREATE OR REPLACE FUNCTION sample_arrived_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mill.enqueue('UPDATE sample_inbox SET handled = true WHERE NOT handled');
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER sample_arrives AFTER INSERT ON sample_inbox
    FOR EACH STATEMENT EXECUTE FUNCTION sample_arrived_row();

INSERT INTO sample_inbox (id) VALUES (1), (2), (3);
