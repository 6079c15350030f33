//! Checks the privileges of the control login and the task logins at startup.

use queue::QueueError;
use queue::operate::{LoginRights, login_rights};
use queue::server::server;
use tokio_postgres::Client;

use crate::attempt::session::{Session, SessionError};
use crate::login::Login;
use crate::shutdown::Tasks;

/// Warns about missing and excessive privileges. Opens one session per task login to read its
/// privileges. If the login of a profile cannot connect, this is not an error: its readers keep
/// trying.
///
/// # Errors
/// The control login lacks the privileges of a worker. The default task login cannot connect. A
/// task login is a superuser or connects to another database.
pub(crate) async fn check(control: &Client, logins: &[Login], tasks: &Tasks) -> anyhow::Result<()> {
    let rights = login_rights(control).await?;
    let queue = server(control).await?;
    if !rights.worker {
        return Err(QueueError::Refused {
            message: format!("the login \"{}\" lacks the privileges of a worker", rights.login),
            hint: Some(format!("GRANT mill_worker TO \"{}\";", rights.login)),
        }
        .into());
    }
    if !rights.sees_backends {
        tracing::warn!(
            login = rights.login,
            "missing privileges to see and terminate backends of other logins: tasks of dead \
             workers wait until their backends are gone. As superuser: \
             GRANT pg_read_all_stats, pg_signal_backend TO mill_worker;"
        );
    }
    for login in logins {
        let opened = Session::open(login, tasks).await.and_then(|session| {
            let here = login.host.is_in_target() || session.server().same_database(&queue);
            let elsewhere = || SessionError::OtherDatabase(login.target.to_string());
            if here { Ok(session) } else { Err(elsewhere()) }
        });
        let session = match opened {
            Ok(session) => session,
            Err(error) if login.profile.is_empty() || error.lasting() => {
                let what = format!("could not open a session for tasks ({})", login.setting);
                return Err(anyhow::Error::from(QueueError::from(error)).context(what));
            }
            Err(error) => {
                tracing::warn!(
                    login = &*login.setting, %error,
                    "could not open a session for tasks yet, trying again"
                );
                continue;
            }
        };
        if login.host.is_in_target() {
            continue;
        }
        let rights = login_rights(session.client()).await?;
        if let Some(power) = excess_privilege(&rights) {
            tracing::warn!(
                login = rights.login,
                "task SQL runs as {power} and could change or drop the queue. To separate them: \
                 (1) CREATE ROLE mill_tasks LOGIN PASSWORD '…'; \
                 (2) GRANT … ON your own tables TO mill_tasks; \
                 (3) worker --task-url 'postgres://mill_tasks@…/{}'",
                login.target.dbname()
            );
        }
    }
    Ok(())
}

fn excess_privilege(rights: &LoginRights) -> Option<&'static str> {
    if rights.superuser {
        Some("a superuser")
    } else if rights.owner {
        Some("the owner of the queue")
    } else if rights.worker {
        Some("a login that may write the queue's tables")
    } else {
        None
    }
}
