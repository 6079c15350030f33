-- Batches overlap, and their merges run concurrently: rows are locked in id order, so that two merges
-- never deadlock.
INSERT INTO shop.customers (id, name)
    SELECT DISTINCT s.customer_id, s.customer_name FROM shop.staging_{batch} s ORDER BY 1
    ON CONFLICT (id) DO NOTHING;
INSERT INTO shop.products (id, name)
    SELECT DISTINCT s.product_id, s.product_name FROM shop.staging_{batch} s ORDER BY 1
    ON CONFLICT (id) DO NOTHING;
-- The later version of an order wins, whichever batch is merged first.
INSERT INTO shop.orders AS o (id, version, customer_id, product_id, quantity, cents, ordered_on)
    SELECT s.order_id, s.version, s.customer_id, s.product_id, s.quantity, s.cents, s.ordered_on
    FROM shop.staging_{batch} s ORDER BY s.order_id
    ON CONFLICT (id) DO UPDATE SET version = excluded.version, customer_id = excluded.customer_id,
        product_id = excluded.product_id, quantity = excluded.quantity, cents = excluded.cents,
        ordered_on = excluded.ordered_on
    WHERE o.version < excluded.version;
DROP TABLE shop.staging_{batch};
