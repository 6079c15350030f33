//! Tasks in other databases: effects and receipt commit together there, exactly once.

pub(crate) mod cli;
pub(crate) mod conditions;
pub(crate) mod exactly_once;
pub(crate) mod mutants;
pub(crate) mod receipts;
pub(crate) mod reclaim;
pub(crate) mod resolve;
pub(crate) mod restore;
pub(crate) mod target;
