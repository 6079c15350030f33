//! Runs one command on the databases of all contexts.

use std::time::Duration;

use cli::{Exit, Failure, exit};
use futures_util::future::join_all;
use tokio::time::{Instant, timeout, timeout_at};

use crate::args::Global;
use crate::contexts::{Context, ContextsFile};
use crate::output::{ContextOutput, Output, print_merged};
use crate::session::Session;

/// Time limit for one database, from the connection to the last row. A search for texts takes about
/// 5 s, and a connection up to 10 s.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Time limit for the request that cancels a statement.
const CANCEL_LIMIT: Duration = Duration::from_secs(2);

/// Runs a command on all databases at the same time, and prints the results in the order of the
/// contexts file. An error of one database does not affect the others.
///
/// # Errors
/// Fails if the contexts file cannot be read. Returns the errors of the databases, after the results
/// of the others are printed. It is no error that some databases have no object of a name or id.
pub(crate) async fn run(
    global: &Global,
    out: &Output,
    command: impl AsyncFn(Session, &Output) -> Exit,
) -> Exit {
    let file = ContextsFile::read(global.contexts_file.as_deref())?;
    let on_each = file.contexts.iter().map(async |context| {
        let output = out.recording(&context.name);
        let ended = on_context(context, &output, &command).await;
        (context, output, ended)
    });
    let (mut outputs, mut failures) = (Vec::new(), Vec::new());
    for (context, output, ended) in join_all(on_each).await {
        let (exit_code, error) = match &ended {
            Ok(code) => (*code, None),
            Err(failure) => (failure.code(), Some(failure.summary())),
        };
        outputs.push(ContextOutput { context: context.name.clone(), output, exit_code, error });
        failures.extend(ended.err().map(|failure| failure.at(&context.name)));
    }
    let succeeded = outputs.iter().filter(|it| it.error.is_none());
    let code = succeeded.map(|it| it.exit_code).max();
    print_merged(out, outputs)?;
    // An object that one database has may be missing in the others.
    failures.retain(|failure| code.is_none() || failure.code() != exit::NOT_FOUND);
    // The first failure determines the exit code.
    failures.sort_by_key(|failure| failure.code() == exit::NOT_FOUND);
    Failure::all(failures).map_or(Ok(code.unwrap_or(exit::OK)), Err)
}

/// Runs the command on one database.
async fn on_context(
    context: &Context,
    output: &Output,
    command: &impl AsyncFn(Session, &Output) -> Exit,
) -> Exit {
    let deadline = Instant::now() + TIME_LIMIT;
    let late =
        |_| Failure::new(exit::TEMPORARY, format!("no answer within {} s", TIME_LIMIT.as_secs()));
    let target = context.target()?;
    let session = timeout_at(deadline, Session::open_at(&target)).await.map_err(late)??;
    let cancel = session.client.cancel_token();
    match timeout_at(deadline, command(session, output)).await {
        Ok(ended) => ended,
        Err(elapsed) => {
            drop(timeout(CANCEL_LIMIT, conninfo::cancel(&cancel, &target)).await);
            Err(late(elapsed))
        }
    }
}
