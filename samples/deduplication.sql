-- One live task per key: the second call returns the id of the first task and raises a notice.
SELECT mill.enqueue('SELECT pg_sleep(1)', key => 'refresh sales');
SELECT mill.enqueue('SELECT pg_sleep(1)', key => 'refresh sales');
