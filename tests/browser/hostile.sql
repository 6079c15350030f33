-- Markup in every name and text that a screen shows: displayed as text, never executed.
SELECT mill.set_group('<img src=x onerror=alert(1)>', '"><svg onload=alert(2)>', max_running => 2);
SELECT mill.set_schedule('<img src=x onerror=alert(3)>', 'manual', 'SELECT ''<script>alert(4)</script>''',
    task => '{"queue": "hostile"}');
SELECT mill.run_now('<img src=x onerror=alert(3)>');
SELECT mill.set_job('<img src=x onerror=alert(5)>', jsonb_build_array(
    jsonb_build_object('name', '<script>alert(6)</script>', 'queue', 'hostile', 'max_attempts', 1,
        'statement', 'DO $$ BEGIN RAISE ''<img src=x onerror=alert(7)>'' USING DETAIL = ''<svg onload=alert(8)>'',
            HINT = ''</pre><script>alert(9)</script>''; END $$'),
    jsonb_build_object('name', '"><img src=x onerror=alert(10)>', 'queue', 'hostile', 'statement', 'SELECT 1',
        'after', jsonb_build_array('<script>alert(6)</script>'))));
SELECT mill.start_run(ARRAY['<img src=x onerror=alert(5)>']);
SELECT mill.enqueue('DO $$ BEGIN RAISE NOTICE ''<img src=x onerror=alert(11)>''; END $$;
    SELECT ''<img src=x onerror=alert(12)>'' AS "<script>alert(13)</script>"', queue => 'hostile',
    name => '</title><script>alert(14)</script>', group_name => '<img src=x onerror=alert(1)>',
    concurrency_key => '<img src=x onerror=alert(15)>', key => '<img src=x onerror=alert(16)>');
UPDATE mill.worker_starts SET host = '<img src=x onerror=alert(17)>' WHERE host = 'archive-1';
CREATE TABLE held ();
