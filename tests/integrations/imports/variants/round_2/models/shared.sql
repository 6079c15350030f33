{{ config(materialized='table', grants={'select': ['pg_read_all_stats']}) }}
select id, label from {{ ref('events') }}
