//! The connection types of the driver, with TLS, and a query before the connection is handed over.

use futures_util::future::{Either, select};
use std::pin::pin;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Error, SimpleQueryMessage, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

pub(crate) type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
pub(crate) type Handshake = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
/// A connection before its session has been checked.
pub(crate) type Opened = (Client, Connection);

/// The part of a connection that has to be driven: await it, or call `poll_message` to receive
/// notices and notifications.
pub type Connection = tokio_postgres::Connection<Socket, Stream>;

/// Returns the first row of a query; empty without a row. Drives the connection meanwhile.
pub(crate) async fn first_row(
    client: &Client,
    connection: &mut Connection,
    sql: &str,
) -> Result<Vec<Option<String>>, Error> {
    let query = pin!(client.simple_query(sql));
    let messages = match select(query, connection).await {
        Either::Left((messages, _)) => messages?,
        // The connection ended before the query. The error of the query then reports this.
        Either::Right((ended, query)) => {
            ended?;
            query.await?
        }
    };
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let values = row.map(|row| (0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect());
    Ok(values.unwrap_or_default())
}
