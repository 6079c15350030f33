-- shop_fleet accesses the queue, shop_etl runs the tasks' SQL, shop_operator is for users.
CREATE ROLE shop_fleet LOGIN PASSWORD '{shop_fleet}' IN ROLE mill_worker;
-- On the queue, only the privilege to enqueue tasks; and reading files on the server, for COPY.
CREATE ROLE shop_etl LOGIN PASSWORD '{shop_etl}' IN ROLE mill_producer, pg_read_server_files;
CREATE ROLE shop_operator LOGIN PASSWORD '{shop_operator}' IN ROLE mill_operator;
