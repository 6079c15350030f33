-- The statement of a task that both jobs contain. `pgmill apply` does not run files that a job refers to.
DO $$
BEGIN
    CREATE TABLE IF NOT EXISTS sample_raw_orders (id integer, customer integer, amount numeric, loaded_at timestamptz);
    CREATE TABLE IF NOT EXISTS sample_raw_customers (id integer, name text, loaded_at timestamptz);
    CREATE TABLE IF NOT EXISTS sample_vault_orders (id integer PRIMARY KEY, customer integer, amount numeric);
    CREATE TABLE IF NOT EXISTS sample_vault_customers (id integer PRIMARY KEY, name text);
    CREATE TABLE IF NOT EXISTS sample_loads (at timestamptz DEFAULT now(), raw_rows bigint);
    CREATE TABLE IF NOT EXISTS sample_mart_orders (at timestamptz DEFAULT now(), customer text, amount numeric);
END
$$;
