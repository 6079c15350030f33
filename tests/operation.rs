//! Programs and views for operators, limits and priorities.

pub(crate) mod audit;
pub(crate) mod bulk;
pub(crate) mod groups;
pub(crate) mod labels;
pub(crate) mod limit_races;
pub(crate) mod limits;
pub(crate) mod metrics;
pub(crate) mod monitoring;
pub(crate) mod operator_views;
pub(crate) mod priority;
pub(crate) mod problems;
pub(crate) mod steering;
pub(crate) mod submit;
pub(crate) mod task_statistics;
pub(crate) mod wait;
