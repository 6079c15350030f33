//! Notifications: every event is reported, to every kind of receiver, whatever fails on the way.

pub(crate) mod delivery;
pub(crate) mod email;
pub(crate) mod email_tls;
pub(crate) mod events;
pub(crate) mod in_database;
pub(crate) mod listener;
pub(crate) mod receivers;
pub(crate) mod tls;
