{{ config(error_if='> 50', warn_if='> 0') }}
select * from {{ ref('orders') }} where payments = 0
