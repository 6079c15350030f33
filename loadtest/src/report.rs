//! Reporting: tables on a terminal, pages with plots, goals, and the comparison of two runs.
//!
//! | part | file |
//! |---|---|
//! | goals, met or missed, by the value or ratio of each case | `goal_check` |
//! | numbers as text: significant digits, units, thousands separators | `number_format` |
//! | results as tables on a terminal, goals as a Markdown table | `table` |
//! | changes between two runs, and which of them are regressions | `compare` |
//! | `loadtest report`: results as an HTML page or as Markdown | `page` |
//! | figures of the page: axes and lines, drawn by uPlot | `plot` |

pub(crate) mod compare;
pub(crate) mod goal_check;
pub(crate) mod number_format;
pub(crate) mod page;
pub(crate) mod plot;
#[cfg(test)]
pub(crate) mod sample_report;
pub(crate) mod table;
