{{ config(materialized='incremental', incremental_strategy='append') }}
select order_id, status, ordered_at as logged_at
from {{ ref('stg_orders') }}
{% if is_incremental() %}
where order_id > (select coalesce(max(order_id), 0) from {{ this }})
{% endif %}
