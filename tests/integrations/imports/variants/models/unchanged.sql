{{ config(materialized='incremental', unique_key='id', on_schema_change='fail') }}
select id, v from {{ ref('events') }}
{% if is_incremental() %} where id > (select max(id) from {{ this }}) {% endif %}
