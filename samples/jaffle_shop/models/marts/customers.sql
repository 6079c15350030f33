select
    c.customer_id,
    c.name,
    c.joined_on,
    min(o.ordered_on) as first_order,
    max(o.ordered_on) as last_order,
    count(o.order_id) as orders,
    coalesce(sum(o.paid), 0) as lifetime_value
from {{ ref('stg_customers') }} as c
left join {{ ref('orders') }} as o using (customer_id)
group by c.customer_id, c.name, c.joined_on
