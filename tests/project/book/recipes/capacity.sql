-- recipe: Limit how many tasks of a customer run at once
-- before
CREATE TABLE bills (customer integer, running bigint);
CREATE FUNCTION bill(customer integer) RETURNS void LANGUAGE sql AS $$
    INSERT INTO bills SELECT customer, count(*) FROM mill.tasks
    WHERE state = 'running' AND concurrency_key = 'customer ' || customer
$$;
-- expect
SELECT count(*) = 15 AND max(running) <= 2
    AND (SELECT array_agg(max_running ORDER BY name) = '{2,1,2}' FROM mill.limit_status WHERE name LIKE 'customer%')
FROM bills
-- recipe: Change one table at a time
-- before
CREATE TABLE stock (amount integer);
INSERT INTO stock VALUES (1);
-- expect
SELECT amount = 4 AND (SELECT count(*) = 3 FROM mill.history WHERE outcome = 'succeeded') FROM stock
-- recipe: Limit the starts per minute
-- before
CREATE TABLE mails (address text);
CREATE FUNCTION send_mail(text) RETURNS void LANGUAGE sql AS 'INSERT INTO mails VALUES ($1)';
-- expect
SELECT count(*) = 1 AND EXISTS (SELECT FROM mill.limit_status WHERE name = 'mail' AND max_running = 5
    AND rate_starts / extract(epoch FROM rate_period) = 10)
FROM mails
-- recipe: Keep a lane free for interactive work
-- expect
SELECT sum(mill.reserved_readers(id)) = 1 FROM mill.workers
-- expect
SELECT EXISTS (SELECT FROM mill.history WHERE priority = 'reserved' AND outcome = 'succeeded')
-- recipe: Hold loads back while a standby lags
-- expect
SELECT max_replication_lag = '10 s' AND max_active_sessions = 90 FROM mill.queue_status WHERE queue = 'etl'
-- recipe: Announce a maintenance window
-- printed: storage upgrade
-- expect
SELECT count(*) = 2 FROM mill.audit WHERE action LIKE '%resume%'
-- after
SELECT mill.enqueue('SELECT 1');
-- expect
SELECT count(*) = 1 FROM mill.history
