{{ config(materialized='incremental', unique_key='ordered_on', on_schema_change='append_new_columns') }}
select
    ordered_on,
    count(*) as orders,
    sum(paid) as paid
from {{ ref('orders') }}
{% if is_incremental() %}
where ordered_on >= (select coalesce(max(ordered_on), '-infinity') from {{ this }})
{% endif %}
group by ordered_on
