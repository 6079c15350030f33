{{ config(materialized='view', grants={'select': ['pg_monitor']}) }}
select * from {{ ref('shared') }}
