//! `pgmill audit`: operator actions as table rows.

use cli::Exit;
use conninfo::Client;
use queue::audit::{self, AuditEntry, AuditFilter};
use terminal::audit_detail;

use crate::args::AuditArgs;
use crate::output::format::{local_time, one_line};
use crate::output::{Output, Row};

/// Lists operator actions.
pub(crate) async fn run(client: &Client, out: &Output, args: &AuditArgs) -> Exit {
    let (from, to) = args.period.bounds(queue::task_queries::now(client).await?)?;
    let filter = AuditFilter {
        subject: args.subject.clone(),
        login: args.login.clone(),
        action: args.action.clone(),
        since: None,
        from,
        to,
        before: None,
    };
    let acts = audit::entries(client, &filter, args.limit + 1).await?;
    out.page((acts, args.limit), "no matching action", row)
}

fn row(act: &AuditEntry) -> Row {
    let mut by = act.login.clone();
    by.extend(act.role.as_ref().map(|role| format!(" as {role}")));
    by.extend(act.actor.as_ref().map(|actor| format!(" (for {actor})")));
    let detail = act.detail.as_ref().map(audit_detail).unwrap_or_default();
    Row::of("at", local_time(act.at))
        .text("by", by)
        .maybe("with", act.application.as_deref())
        .text("action", &act.action)
        .text("subject", &act.subject)
        .text("detail", one_line(&detail, 120))
}
