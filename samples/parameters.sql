-- Values are bound as $1, $2, … and converted to the parameter types of the statement.
CREATE TABLE IF NOT EXISTS sample_orders (id integer, placed_on date, tags text[], note jsonb);
GRANT INSERT ON sample_orders TO PUBLIC;

SELECT mill.enqueue(
    'INSERT INTO sample_orders VALUES ($1, $2, $3, $4)',
    params => '[7, "2026-11-21", ["new", "it''s"], {"gift": true}]');
