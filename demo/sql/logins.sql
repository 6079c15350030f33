-- The fleet works on the queue, the tasks' SQL runs as shop_etl, a person is shop_operator.
CREATE ROLE shop_fleet LOGIN PASSWORD '{shop_fleet}' IN ROLE mill_worker;
-- Not a right on the queue but to add tasks to it; and to read files on the server, for COPY.
CREATE ROLE shop_etl LOGIN PASSWORD '{shop_etl}' IN ROLE mill_producer, pg_read_server_files;
CREATE ROLE shop_operator LOGIN PASSWORD '{shop_operator}' IN ROLE mill_operator;
