{{ config(materialized='incremental', incremental_strategy='delete+insert', unique_key='id', on_schema_change='sync_all_columns') }}
select id, k, v, label from {{ ref('events') }}
{% if is_incremental() %} where id > (select max(id) - 10 from {{ this }}) {% endif %}
