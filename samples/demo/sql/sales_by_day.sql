INSERT INTO shop.sales_by_day (day, orders, cents)
    SELECT o.ordered_on, count(*), sum(o.cents) FROM shop.orders o GROUP BY o.ordered_on
    ON CONFLICT (day) DO UPDATE SET orders = excluded.orders, cents = excluded.cents;
