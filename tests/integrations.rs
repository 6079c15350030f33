//! Programs of other systems: clients of applications, imports, and receivers of traces.

pub(crate) mod clients;
pub(crate) mod imports;
pub(crate) mod traces;
