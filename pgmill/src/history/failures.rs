//! `pgmill failures`: failed attempts, grouped by error.

use cli::Exit;
use conninfo::Client;
use queue::insight;
use terminal::HIDDEN;

use crate::args::DEFAULT_SINCE;
use crate::args::FailuresArgs;
use crate::output::format::{one_line, outcome_tone, relative_time};
use crate::output::list::nothing_since;
use crate::output::{Output, Row};

/// Maximum number of characters of a message in the list. It is large, because users copy the text
/// into `task retry --message`.
const MESSAGE_CHARS: usize = 300;

/// Lists failed attempts grouped by error.
pub(crate) async fn run(client: &Client, out: &Output, args: &FailuresArgs) -> Exit {
    let groups = insight::failures(client, args.since.unwrap_or(DEFAULT_SINCE)).await?;
    let now = queue::task_queries::now(client).await?;
    let nothing = match args.since {
        Some(_) => "no attempt failed in this period".to_owned(),
        None => nothing_since("no attempt failed"),
    };
    out.list(&groups, &nothing, |it| {
        let examples: Vec<String> = it.examples.iter().map(ToString::to_string).collect();
        let hidden = it.sqlstate.as_ref().map(|_| HIDDEN);
        let message = it.message.as_deref().or(hidden).unwrap_or_default();
        Row::of("outcome", it.outcome)
            .tone(outcome_tone(it.outcome))
            .maybe("code", it.sqlstate.as_ref())
            .text("attempts", it.attempts)
            .text("tasks", it.tasks)
            .text("first", relative_time(it.first_at, now))
            .text("last", relative_time(it.last_at, now))
            .text("queues", it.queues.join(", "))
            .text("examples", examples.join(", "))
            .text("message", one_line(message, MESSAGE_CHARS))
    })
}
