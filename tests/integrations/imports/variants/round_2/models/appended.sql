{{ config(materialized='incremental', incremental_strategy='append', on_schema_change='append_new_columns') }}
select id, v, label, k + 1 as next_k from {{ ref('events') }}
{% if is_incremental() %} where id > (select max(id) from {{ this }}) {% endif %}
