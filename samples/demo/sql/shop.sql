-- The tables of the tasks. Owned by the tasks' login: only an owner may VACUUM and REFRESH.
CREATE SCHEMA shop AUTHORIZATION shop_etl;
SET ROLE shop_etl;

CREATE TABLE shop.customers (
    id integer PRIMARY KEY,
    name text NOT NULL,
    spent_cents bigint
);

CREATE TABLE shop.products (
    id integer PRIMARY KEY,
    name text NOT NULL UNIQUE
);

CREATE TABLE shop.orders (
    id integer PRIMARY KEY,
    version integer NOT NULL,
    customer_id integer NOT NULL REFERENCES shop.customers,
    product_id integer NOT NULL REFERENCES shop.products,
    quantity integer NOT NULL CHECK (quantity > 0),
    cents bigint NOT NULL CHECK (cents >= 0),
    ordered_on date NOT NULL
);

-- The columns of a batch. Each load creates its own table LIKE this one.
CREATE TABLE shop.staging (
    order_id integer NOT NULL,
    version integer NOT NULL,
    customer_id integer NOT NULL,
    customer_name text NOT NULL,
    product_id integer NOT NULL,
    product_name text NOT NULL,
    quantity integer NOT NULL,
    cents bigint NOT NULL,
    ordered_on date NOT NULL
);

CREATE TABLE shop.exchange_rates (currency text PRIMARY KEY, cents_per_unit integer NOT NULL);

CREATE TABLE shop.sales_by_day (day date PRIMARY KEY, orders bigint NOT NULL, cents bigint NOT NULL);

CREATE MATERIALIZED VIEW shop.sales_by_product AS
    SELECT p.name AS product, count(*) AS orders, sum(o.cents)::bigint AS cents
    FROM shop.orders o JOIN shop.products p ON p.id = o.product_id
    GROUP BY p.name
    WITH NO DATA;

-- Commits after each slice: no long transaction, and a second run is idempotent.
CREATE PROCEDURE shop.sum_up_customers(slice integer) LANGUAGE plpgsql AS $$
DECLARE
    first_id integer := 1;
    last_id integer := (SELECT max(id) FROM shop.customers);
BEGIN
    WHILE first_id <= last_id LOOP
        UPDATE shop.customers c SET spent_cents = spent.cents
            FROM (SELECT o.customer_id, sum(o.cents) AS cents FROM shop.orders o
                WHERE o.customer_id BETWEEN first_id AND first_id + slice - 1
                GROUP BY o.customer_id) AS spent
            WHERE c.id = spent.customer_id;
        COMMIT;
        first_id := first_id + slice;
    END LOOP;
END
$$;

GRANT USAGE ON SCHEMA shop TO shop_operator;
GRANT SELECT ON ALL TABLES IN SCHEMA shop TO shop_operator;
RESET ROLE;
