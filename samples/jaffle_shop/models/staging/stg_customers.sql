select id as customer_id, name, joined_on, newsletter from {{ ref('raw_customers') }}
