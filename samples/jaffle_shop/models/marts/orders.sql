{{ config(indexes=[{'columns': ['order_id'], 'unique': true}, {'columns': ['customer_id']}]) }}
select
    o.order_id,
    o.customer_id,
    o.ordered_at,
    o.ordered_on,
    o.status,
    coalesce(p.paid, 0) as paid,
    coalesce(p.paid_by_card, 0) as paid_by_card,
    coalesce(p.payments, 0) as payments
from {{ ref('stg_orders') }} as o
left join {{ ref('payments_by_order') }} as p using (order_id)
