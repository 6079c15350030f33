//! What a statement yields besides its effects: rows, notices and progress.

pub mod decode;
pub(crate) mod notices;
pub(crate) mod progress;
pub(crate) mod rows;
