//! Building blocks of a page, shared by the screens: layout, escaping, formats, SQL highlighting,
//! graphs, plots and the order of tasks.

pub(crate) mod format;
pub(crate) mod graph;
pub(crate) mod highlight;
pub(crate) mod layout;
pub(crate) mod plots;
pub(crate) mod topology;
