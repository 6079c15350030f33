-- The tables of the samples in Python.
CREATE TABLE IF NOT EXISTS sample_orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    amount numeric NOT NULL
);
CREATE TABLE IF NOT EXISTS sample_bills (order_id bigint PRIMARY KEY);
GRANT INSERT ON sample_bills TO PUBLIC;
