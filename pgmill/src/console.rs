//! `pgmill console`.

use std::path::Path;

use console::{Console, Options, StartError, Token};
use queue::exit;
use terminal::tell;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{ConsoleArgs, Global};
use crate::failure::Failure;

/// A shorter one could be guessed.
const LEAST_TOKEN_CHARS: usize = 16;

/// Serves until somebody ends it.
///
/// # Errors
/// A token file that is none; an address that cannot be listened on; no database.
pub(crate) async fn run(global: &Global, args: &ConsoleArgs) -> Result<u8, Failure> {
    let target = terminal::target(global.given.as_ref())?.with_application_name("pgmill console");
    let tokens = args.token_file.as_deref().map(tokens).transpose()?.unwrap_or_default();
    let options = Options {
        listen: args.listen,
        read_only: args.read_only,
        tokens,
        base_path: args.base_path.clone(),
        hosts: args.allow_host.clone(),
    };
    let console = Console::start(&target, options).await.map_err(failure)?;
    tell(format_args!("the console is at {}", console.url()?));
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let end = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    console.serve(end).await?;
    Ok(exit::OK)
}

/// A line for each: the token, and behind it whose it is, if one likes.
fn tokens(file: &Path) -> Result<Vec<Token>, Failure> {
    let named = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("cannot read the token in {named}: {error}")))?;
    let token = |line: &str| {
        let (secret, label) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let label = Some(label.trim().to_owned()).filter(|label| !label.is_empty());
        Token { secret: secret.to_owned(), label }
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let tokens: Vec<Token> = lines.map(token).collect();
    let short = |token: &Token| token.secret.chars().count() < LEAST_TOKEN_CHARS;
    if tokens.is_empty() || tokens.iter().any(short) {
        return Err(Failure::usage(format!(
            "the token in {named} has fewer than {LEAST_TOKEN_CHARS} characters"
        ))
        .hint(format!("openssl rand -hex 32 > {named}")));
    }
    Ok(tokens)
}

fn failure(error: StartError) -> Failure {
    match error {
        StartError::Usage { message, hint } => Failure::usage(message).hint(hint),
        StartError::Listen { .. } => Failure::new(exit::FAILURE, error.to_string()),
        StartError::Connect(error) => error.into(),
        StartError::Database(error) => error.into(),
    }
}
