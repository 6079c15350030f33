{{ config(materialized='incremental', incremental_strategy='delete+insert', unique_key='id', on_schema_change='sync_all_columns') }}
select id, k::text as k, updated_at::date as day, label from {{ ref('events') }}
{% if is_incremental() %} where id > (select max(id) - 10 from {{ this }}) {% endif %}
