//! Checks at startup that this worker can work here: `pooler`, schema version, `privileges`, Citus.

mod pooler;
mod privileges;

use queue::{citus, schema};
use tokio_postgres::error::SqlState;

use crate::context::Context;
use crate::login::Login;

/// Checks the database and the logins. `own_login`: whether the login of tasks is that of the worker.
///
/// # Errors
/// The database is unreachable, or something about it or about a login refuses this worker.
pub(crate) async fn check(
    context: &Context,
    logins: &[Login],
    own_login: bool,
) -> anyhow::Result<()> {
    check_poolers(context, logins, own_login).await?;
    let client = context.control.control_session().await?.client;
    let version = schema::check_version(&client).await;
    // A login without privileges cannot even read the version. In that case the missing
    // GRANT is the error to report.
    let denied = version
        .as_ref()
        .is_err_and(|error| error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    if denied {
        privileges::check(&client, logins, &context.tasks).await?;
    }
    version?;
    privileges::check(&client, logins, &context.tasks).await?;
    citus::check(&client).await?;
    Ok(())
}

/// Checks every login for a pooler. It is not an error if the server of a profile is unreachable: the
/// readers of the profile wait for it.
async fn check_poolers(context: &Context, logins: &[Login], own_login: bool) -> anyhow::Result<()> {
    let tasks = &context.tasks;
    pooler::check(context.control.target(), "--database-url", tasks).await?;
    for login in &logins[usize::from(own_login)..] {
        match pooler::check(&login.target, &login.setting, tasks).await {
            Err(error) if login.profile.is_empty() || error.refused() => {
                return Err(
                    anyhow::Error::from(error).context("could not open a session for tasks")
                );
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}
