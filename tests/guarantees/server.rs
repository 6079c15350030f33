//! Events in the life of a server: its transaction ids run out, dead rows pile up, tables are rewritten,
//! disks for temporary files are full, and the server is upgraded or restored.

pub(crate) mod dead_rows;
pub(crate) mod mixed_versions;
pub(crate) mod restore;
pub(crate) mod rewrites;
pub(crate) mod temporary_files;
pub(crate) mod transaction_ids;
pub(crate) mod upgrade;
