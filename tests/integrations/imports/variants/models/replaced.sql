{{ config(materialized='incremental', incremental_strategy='delete+insert', unique_key=['id', 'k']) }}
select id, k, v, label from {{ ref('events') }}
{% if is_incremental() %} where id > (select max(id) / 2 from {{ this }}) {% endif %}
