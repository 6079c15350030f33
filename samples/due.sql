-- Tasks that are due later, by the clock of the database.
SELECT mill.enqueue('SELECT 1', name => 'soon', due_at => now() + interval '1 second');
SELECT mill.why(mill.enqueue('SELECT 1', name => 'much later', due_at => now() + interval '100 years',
                             key => 'sample much later'));
SELECT mill.cancel(task_id) FROM mill.dedup_keys WHERE key = 'sample much later';
