{{ config(materialized='materialized_view', indexes=[{'columns': ['status'], 'unique': true}]) }}
select status, count(*) as orders, sum(paid) as paid from {{ ref('orders') }} group by status
