//! `pgmill audit`: operator actions as table rows.

use cli::Failure;
use conninfo::Client;
use queue::audit::{self, AuditEntry, AuditFilter};
use terminal::audit_detail;

use crate::args::AuditArgs;
use crate::output::format::{local_time, one_line, period};
use crate::output::list::{close, cut};
use crate::output::{Field, Output};

/// Lists operator actions.
pub(crate) async fn run(client: &Client, out: &Output, args: &AuditArgs) -> Result<u8, Failure> {
    let (from, to) = period(client, args.since, &args.from, &args.to).await?;
    let filter = AuditFilter {
        subject: args.subject.clone(),
        login: args.login.clone(),
        action: args.action.clone(),
        since: None,
        from,
        to,
        before: None,
    };
    // Query one row more than is shown, to learn whether there are more.
    let mut acts = audit::entries(client, &filter, args.limit + 1).await?;
    let more = cut(&mut acts, args.limit);
    if out.json {
        out.document(&acts)?;
    } else if !acts.is_empty() {
        let rows = acts.iter().map(row).collect();
        let headings = ["at", "by", "with", "action", "subject", "detail"];
        out.print_table(&headings, rows)?;
    }
    close(out, acts.len(), more, "no matching action")
}

fn row(act: &AuditEntry) -> Vec<Field> {
    let mut by = act.login.clone();
    if let Some(role) = &act.role {
        by.push_str(&format!(" as {role}"));
    }
    if let Some(actor) = &act.actor {
        by.push_str(&format!(" (for {actor})"));
    }
    vec![
        Field::new(local_time(act.at)),
        Field::new(by),
        Field::or_blank(act.application.as_deref()),
        Field::new(&act.action),
        Field::new(&act.subject),
        Field::new(one_line(&act.detail.as_ref().map(audit_detail).unwrap_or_default(), 120)),
    ]
}
