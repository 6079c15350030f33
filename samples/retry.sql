-- Fails once, succeeds at its second attempt: a task knows which attempt it is.
SELECT mill.enqueue($task$
    DO $$
    BEGIN
        IF current_setting('mill.attempt')::integer = 1 THEN
            RAISE EXCEPTION 'not at the first attempt';
        END IF;
    END
    $$
$task$, name => 'second attempt', max_attempts => 2, retry_interval => '100 milliseconds');

-- Says that another attempt has no point.
SELECT mill.enqueue($task$
    DO $$ BEGIN RAISE EXCEPTION 'no such customer' USING ERRCODE = 'MT900'; END $$
$task$, name => 'fatal', max_attempts => 10);

-- Asks to be run again later, without using up an attempt, until the table is there.
SELECT mill.enqueue($task$
    DO $$
    BEGIN
        IF to_regclass('sample_arrived') IS NULL THEN
            RAISE EXCEPTION 'sample_arrived is not there yet' USING ERRCODE = 'MT901';
        END IF;
    END
    $$
$task$, name => 'later', max_attempts => 1, retry_interval => '100 milliseconds');
CREATE TABLE IF NOT EXISTS sample_arrived ();
