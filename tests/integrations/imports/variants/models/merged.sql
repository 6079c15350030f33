{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id', merge_update_columns=['v']) }}
select id, v, label from {{ ref('events') }}
{% if is_incremental() %} where updated_at > (select coalesce(max(updated_at), '-infinity') - interval '60 days' from {{ ref('events') }}) and id > (select 0 * count(*) from {{ this }}) {% endif %}
