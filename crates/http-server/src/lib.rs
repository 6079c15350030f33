//! HTTP/1 server with limits against slow clients and floods of connections.
//!
//! Invariant: no client makes the server wait for longer than a time limit, and the number of
//! connections is bounded. If the server is full, a new connection replaces one that waits for its
//! client (`connections`), so that clients that send nothing cannot keep others out.

mod activity;
mod body;
mod connection;
mod connections;
mod refusal;
mod server;
mod write_timeout;

pub use connection::{PeerAddress, client_network};
pub use refusal::{Refusal, RefusalObserver};
pub use server::Server;
