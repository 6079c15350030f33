{{ config(materialized='incremental', incremental_strategy='merge', unique_key=['id', 'k'], merge_exclude_columns=['label'],
    incremental_predicates=["DBT_INTERNAL_DEST.id > 3"]) }}
select id, k, v, label from {{ ref('events') }}
{% if is_incremental() %} where id > (select 0 * count(*) from {{ this }}) {% endif %}
