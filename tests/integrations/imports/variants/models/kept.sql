{{ config(materialized='incremental', unique_key='id', grants={'select': ['pg_monitor', 'pg_read_all_stats']}, full_refresh=false) }}
select id, label from {{ ref('events') }}
{% if is_incremental() %} where id > (select max(id) from {{ this }}) {% endif %}
