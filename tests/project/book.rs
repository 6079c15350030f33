//! The book: its references, its recipes and its list of chapters.

pub(crate) mod cookbook;
pub(crate) mod reference;
pub(crate) mod release;
pub(crate) mod summary;
pub(crate) mod upgrade;
