{{ config(severity='warn', store_failures=true) }}
select * from {{ ref('stg_payments') }} where amount <= 0
