-- Calls that the program of this folder runs: tasks of the form CALL name($1), in a queue of their own.
CREATE TABLE IF NOT EXISTS sent_invoices (invoice bigint);
GRANT SELECT, INSERT ON sent_invoices TO PUBLIC;
SELECT mill.enqueue('CALL send_invoice($1)', params => '[{"invoice": 7}]', queue => 'calls');
