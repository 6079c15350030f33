//! Executes the statements that the clients of all languages share. Their arguments are sent as
//! text, and their results have one column of text.

use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use crate::error::Error;

/// Executes the statement, whose parameters are texts.
pub(crate) async fn query(
    client: &impl GenericClient,
    sql: &str,
    arguments: &[&str],
) -> Result<Vec<Option<String>>, Error> {
    let values: Vec<(&(dyn ToSql + Sync), Type)> =
        arguments.iter().map(|argument| (argument as _, Type::TEXT)).collect();
    texts(&client.query_typed(sql, &values).await?)
}

/// As [`query`], for a statement with one row that is not null.
pub(crate) async fn text(
    client: &impl GenericClient,
    sql: &str,
    arguments: &[&str],
) -> Result<String, Error> {
    only(query(client, sql, arguments).await?)
}

/// Returns the column of the result.
pub(crate) fn texts(rows: &[Row]) -> Result<Vec<Option<String>>, Error> {
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Returns the value of the only row.
pub(crate) fn only(rows: Vec<Option<String>>) -> Result<String, Error> {
    rows.into_iter().flatten().next().ok_or_else(|| Error::Unexpected("no value".to_owned()))
}

/// Executes one of the procedures that wait. Their results are enums, whose types tokio-postgres
/// has to find before the call: during the call, its queries would wait for the end of the call.
pub(crate) async fn wait<T: for<'a> FromSql<'a>>(
    client: &impl GenericClient,
    sql: &str,
    id: i64,
    timeout: Option<std::time::Duration>,
) -> Result<T, Error> {
    let statement = client.prepare_typed(sql, &[Type::TEXT, Type::TEXT]).await?;
    let seconds = timeout.map(seconds);
    let rows = client.query(&statement, &[&id.to_string(), &seconds]).await;
    let rows = rows.map_err(Error::of_wait)?;
    let row = rows.first().ok_or_else(|| Error::Unexpected("no row".to_owned()))?;
    Ok(row.try_get(0)?)
}

/// Returns an interval.
pub(crate) fn seconds(duration: std::time::Duration) -> String {
    format!("{:.6} seconds", duration.as_secs_f64())
}
