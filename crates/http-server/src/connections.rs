//! The open connections of a server.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::task::{AbortHandle, Id, JoinSet};

use crate::activity::Activity;
use crate::connection::{Connection, client_network};

/// The tasks of all open connections.
#[derive(Default)]
pub(crate) struct Connections {
    tasks: JoinSet<()>,
    open: HashMap<Id, OpenConnection>,
}

struct OpenConnection {
    network: IpAddr,
    activity: Arc<Activity>,
    abort: AbortHandle,
}

impl Connections {
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Serves a connection in a task.
    pub(crate) fn spawn(
        &mut self,
        connection: Connection,
        stream: TcpStream,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) {
        let network = client_network(connection.peer.0);
        let activity = Arc::clone(&connection.activity);
        let abort = self.tasks.spawn(connection.run(stream, tls));
        self.open.insert(abort.id(), OpenConnection { network, activity, abort });
    }

    /// Waits until a connection has ended; pending without connections.
    pub(crate) async fn ended(&mut self) {
        match self.tasks.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok((id, ()))) => drop(self.open.remove(&id)),
            Some(Err(error)) => drop(self.open.remove(&error.id())),
        }
    }

    /// Waits until all connections have ended.
    pub(crate) async fn all_ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Closes a connection that waits for its client, and waits until its socket is closed, so that the
    /// new connection does not exceed the limit. Returns whether there was one.
    pub(crate) async fn replace_one(&mut self) -> bool {
        let open: Vec<_> =
            self.open.iter().map(|(id, it)| (*id, it.network, it.activity.waited())).collect();
        let Some(id) = least_useful(&open) else { return false };
        if let Some(connection) = self.open.get(&id) {
            connection.abort.abort();
        }
        while self.open.contains_key(&id) {
            self.ended().await;
        }
        true
    }
}

/// Chooses among the connections that wait for their client: of the network that has the most
/// connections, the one that has waited the longest. So a client that opens many connections
/// replaces its own, and one that sends its request at once is served.
fn least_useful<I: Copy, W: Ord + Copy>(open: &[(I, IpAddr, Option<W>)]) -> Option<I> {
    let mut of_network: HashMap<IpAddr, usize> = HashMap::new();
    for (_, network, _) in open {
        *of_network.entry(*network).or_default() += 1;
    }
    let waiting = open.iter().filter_map(|(id, network, waited)| Some((id, network, (*waited)?)));
    let chosen = waiting.max_by_key(|(_, network, waited)| (of_network[*network], *waited));
    chosen.map(|(id, ..)| *id)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::connection::PeerAddress;

    #[tokio::test]
    async fn a_replaced_connection_is_closed_before_another_is_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, from) = listener.accept().await.unwrap();
        let activity = Arc::new(Activity::new());
        let connection = Connection {
            peer: PeerAddress(from.ip()),
            activity: Arc::clone(&activity),
            router: axum::Router::new(),
            observer: Arc::new(|_| {}),
            shutdown: CancellationToken::new(),
        };
        let mut connections = Connections::default();
        connections.spawn(connection, stream, None);
        assert!(connections.replace_one().await);
        assert_eq!(connections.len(), 0);
        // The task that owns the socket is gone.
        assert_eq!(Arc::strong_count(&activity), 1);
    }

    #[test]
    fn a_client_with_many_connections_replaces_its_own() {
        let [a, b] = ["192.0.2.1", "192.0.2.2"].map(|it| it.parse::<IpAddr>().unwrap());
        let honest = (1, a, Some(900));
        let flood = [(2, b, Some(5)), (3, b, Some(7)), (4, b, None)];
        assert_eq!(least_useful(&[&[honest], &flood[..]].concat()), Some(3));
        assert_eq!(least_useful(&[honest, (4, b, None), (5, b, None)]), Some(1));
        assert_eq!(least_useful::<i32, u8>(&[(4, b, None), (5, a, None)]), None);
    }
}
