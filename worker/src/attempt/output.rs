//! Output of a statement: rows, notices and progress.
//!
//! | output | file |
//! |---|---|
//! | rows: a count of all, and the first ones for the history | `rows` |
//! | binary values of common types as text | `decode` |
//! | notices of a session, within limits; progress parsed from them | `notices` |
//! | progress and notices of running tasks, written about once a second | `progress` |

pub mod decode;
pub(crate) mod notices;
pub(crate) mod progress;
pub(crate) mod rows;
