//! Reporting: tables on a terminal, pages with plots, goals, and the comparison of two runs.

pub(crate) mod compare;
pub(crate) mod goal_check;
pub(crate) mod number_format;
pub(crate) mod page;
pub(crate) mod plot;
#[cfg(test)]
pub(crate) mod sample_report;
pub(crate) mod table;
