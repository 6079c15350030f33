//! Groups and limits with their use.

pub mod groups;
pub mod limits;
