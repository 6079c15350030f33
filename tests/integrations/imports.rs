//! Imports from other systems.

pub(crate) mod fires;
pub(crate) mod sources;
