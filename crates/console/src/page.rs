//! Building blocks of a page, shared by the screens.
//!
//! | task | file |
//! |---|---|
//! | title, navigation and user of every page | `layout` |
//! | request that reads: session, transaction, layout of its page | `read_request` |
//! | durations, times, counts, states and links as text or HTML | `format` |
//! | SQL with highlighted syntax and a marked error position | `highlight` |
//! | order of tasks in which each task follows its parents | `topology` |
//! | nodes and edges of a graph, which the browser draws | `graph` |
//! | throughput of the last hours as columns for plots and a table | `plots` |

pub(crate) mod format;
pub(crate) mod graph;
pub(crate) mod highlight;
pub(crate) mod layout;
pub(crate) mod plots;
pub(crate) mod read_request;
pub(crate) mod topology;
