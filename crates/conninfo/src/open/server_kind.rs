//! Checks whether the server is of the kind that `target_session_attrs` requests.

use crate::open::connection::{Connection, first_row};
use crate::target_session_attrs::TargetSessionAttrs;
use tokio_postgres::Client;

const READ_ONLY: &str = "SHOW /* queue.session_read_only */ transaction_read_only";
const IN_RECOVERY: &str = "SELECT /* queue.session_in_recovery */ \
                           CASE WHEN pg_catalog.pg_is_in_recovery() THEN 'on' ELSE 'off' END";

impl TargetSessionAttrs {
    /// Returns the query, the answer that is not wanted (`on` or `off`), and the error text for it.
    fn check_query(self) -> Option<(&'static str, &'static str, &'static str)> {
        match self {
            Self::Any | Self::PreferStandby => None,
            Self::ReadWrite => Some((READ_ONLY, "on", "session is read-only")),
            Self::ReadOnly => Some((READ_ONLY, "off", "session is not read-only")),
            Self::Primary => Some((IN_RECOVERY, "on", "server is in hot standby mode")),
            Self::Standby => Some((IN_RECOVERY, "off", "server is not in hot standby mode")),
        }
    }

    /// Returns why the server does not match, or `None` if it matches.
    ///
    /// Uses a query instead of the reported parameter `in_hot_standby`, which poolers do not pass
    /// on.
    pub(crate) async fn mismatch(
        self,
        client: &Client,
        connection: &mut Connection,
    ) -> Result<Option<&'static str>, tokio_postgres::Error> {
        let Some((sql, unwanted, complaint)) = self.check_query() else { return Ok(None) };
        let row = first_row(client, connection, sql).await?;
        Ok((row.first() == Some(&Some(unwanted.to_owned()))).then_some(complaint))
    }
}
