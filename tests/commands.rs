//! Command lines: arguments, messages, exit codes, completion, lists and searches.

pub(crate) mod byte_order_mark;
pub(crate) mod cli;
pub(crate) mod cli_messages;
pub(crate) mod completion;
pub(crate) mod contexts;
pub(crate) mod task_search;
pub(crate) mod top;
