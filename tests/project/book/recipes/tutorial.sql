-- recipe: the tutorial
-- printed: page 3
-- printed: exit code 3
-- printed: relation "sales" does not exist
-- printed: task 5: retried
-- printed: queue "default" is paused
-- printed: visits_daily
-- expect
SELECT count(*) = 7 AND sum(visits) = 1000 FROM visits_per_page
-- expect
SELECT count(*) = 2 AND bool_and(state = 'succeeded') FROM mill.runs
-- expect
SELECT count(*) = 1 AND bool_and(event->>'task' = 'broken' AND event->>'message' = 'division by zero') FROM alerts
