-- A row that arrives starts a task. (Without a key: a live task of that key may have read the table
-- already, and would not see the row.)
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
