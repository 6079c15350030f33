//! Logins of the fleet: who they may be, and what happens when they change.

pub(crate) mod changed_password;
pub(crate) mod managed;
pub(crate) mod membership;
pub(crate) mod unconnected;
