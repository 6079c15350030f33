//! Jobs from the definitions of other tools.

pub(crate) mod dbt;
pub(crate) mod dbt_check;
mod dbt_project;
