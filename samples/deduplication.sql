-- One live task per key: the second call returns the first one's id and says so.
SELECT mill.enqueue('SELECT pg_sleep(1)', key => 'refresh sales');
SELECT mill.enqueue('SELECT pg_sleep(1)', key => 'refresh sales');
