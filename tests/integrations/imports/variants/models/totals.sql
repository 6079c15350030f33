{{ config(materialized='materialized_view', indexes=[{'columns': ['label'], 'unique': true}], grants={'select': ['pg_monitor']}) }}
select label, sum(v) as total from {{ ref('events') }} group by label
