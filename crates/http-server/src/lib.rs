//! HTTP/1 server with limits against slow clients and floods of connections.
//!
//! | task | file |
//! |---|---|
//! | accepting connections up to a maximum number, and shutdown | `server` |
//! | open connections, and the choice of one to replace | `connections` |
//! | TLS handshake and requests of one connection | `connection` |
//! | since when a connection has waited for its client | `activity` |
//! | time limit for receiving a body; end of a response | `body` |
//! | time limit for a client that does not read the response | `write_timeout` |
//! | reasons of refusals, and the type of their observer | `refusal` |
//!
//! Invariant: no client makes the server wait for longer than a time limit, and the number of
//! connections is bounded. If the server is full, a new connection replaces one that waits for its
//! client, so that clients that send nothing cannot keep others out.

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
