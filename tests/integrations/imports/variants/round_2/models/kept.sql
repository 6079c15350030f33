{{ config(materialized='incremental', unique_key='id', grants={'select': ['pg_read_all_settings']}, full_refresh=false) }}
select id, label from {{ ref('events') }}
{% if is_incremental() %} where id > (select max(id) from {{ this }}) {% endif %}
