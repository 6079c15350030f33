//! Reporting: tables on a terminal, pages with plots, and the comparison of two runs.
//!
//! | part | file |
//! |---|---|
//! | numbers as text: significant digits, units, thousands separators | `number_format` |
//! | a table as text, Markdown or part of a page; the tables of a run | `table` |
//! | changes between two runs, and which of them are regressions | `compare` |
//! | `loadtest report`: results as an HTML page or as Markdown | `page` |

pub(crate) mod compare;
pub(crate) mod number_format;
pub(crate) mod page;
pub(crate) mod table;
