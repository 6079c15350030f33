{{ config(materialized='table', grants={'select': ['pg_monitor', 'pg_read_all_stats'], 'insert': ['pg_monitor']}) }}
select id, label from {{ ref('events') }}
