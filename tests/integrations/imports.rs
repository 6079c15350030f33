//! Imports from other systems.

pub(crate) mod dbt;
pub(crate) mod dbt_check;
mod dbt_project;
pub(crate) mod fires;
pub(crate) mod sources;
