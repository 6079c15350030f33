//! `pgmill failures`: failed attempts, grouped by error.

use cli::{Failure, exit};
use conninfo::Client;
use queue::insight::{self, FailureGroup};
use terminal::HIDDEN;

use crate::args::DEFAULT_SINCE;
use crate::args::FailuresArgs;
use crate::output::format::{one_line, outcome_tone, relative_time};
use crate::output::list::nothing_since;
use crate::output::{Field, Output};

/// Maximum number of characters of a message in the list. It is large, because users copy the text
/// into `task retry --message`.
const MESSAGE_CHARS: usize = 300;

/// Lists failed attempts grouped by error.
pub(crate) async fn run(client: &Client, out: &Output, args: &FailuresArgs) -> Result<u8, Failure> {
    let groups = insight::failures(client, args.since.unwrap_or(DEFAULT_SINCE)).await?;
    if out.json {
        out.document(&groups)?;
    } else if groups.is_empty() {
        out.note(match args.since {
            Some(_) => "no attempt failed in this period".to_owned(),
            None => nothing_since("no attempt failed"),
        });
    } else {
        let now = queue::task_queries::now(client).await?;
        let row = |it: &FailureGroup| {
            let examples: Vec<String> = it.examples.iter().map(ToString::to_string).collect();
            let hidden = it.sqlstate.as_ref().map(|_| HIDDEN);
            let message = it.message.as_deref().or(hidden).unwrap_or_default();
            vec![
                Field::new(it.outcome).tone(outcome_tone(it.outcome)),
                Field::or_blank(it.sqlstate.as_ref()),
                Field::new(it.attempts),
                Field::new(it.tasks),
                Field::new(relative_time(it.first_at, now)),
                Field::new(relative_time(it.last_at, now)),
                Field::new(it.queues.join(", ")),
                Field::new(examples.join(", ")),
                Field::new(one_line(message, MESSAGE_CHARS)),
            ]
        };
        const HEADINGS: [&str; 9] = [
            "outcome", "code", "attempts", "tasks", "first", "last", "queues", "examples",
            "message",
        ];
        out.print_table(&HEADINGS, groups.iter().map(row).collect())?;
    }
    Ok(exit::OK)
}
