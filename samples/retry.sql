-- Fails once and succeeds at its second attempt: mill.attempt is the number of the attempt.
SELECT mill.enqueue($task$
    DO $$
    BEGIN
        IF current_setting('mill.attempt')::integer = 1 THEN
            RAISE EXCEPTION 'fails at the first attempt';
        END IF;
    END
    $$
$task$, name => 'second attempt', max_attempts => 2, retry_interval => '100 milliseconds');

-- Fails permanently: MT900 prevents further attempts.
SELECT mill.enqueue($task$
    DO $$ BEGIN RAISE EXCEPTION 'no such customer' USING ERRCODE = 'MT900'; END $$
$task$, name => 'fatal', max_attempts => 10);

-- Snoozes until the table exists: MT901 runs the task again later without using up an attempt.
SELECT mill.enqueue($task$
    DO $$
    BEGIN
        IF to_regclass('sample_arrived') IS NULL THEN
            RAISE EXCEPTION 'sample_arrived does not exist yet' USING ERRCODE = 'MT901';
        END IF;
    END
    $$
$task$, name => 'snooze', max_attempts => 1, retry_interval => '100 milliseconds');
CREATE TABLE IF NOT EXISTS sample_arrived ();
