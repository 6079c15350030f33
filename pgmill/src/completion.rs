//! `pgmill completions`, and the names from the database that its scripts offer.
//!
//! A script calls the hidden command `__complete` with the words of the command line. That command
//! finds which argument the cursor is at, and prints the names that the argument may have. It
//! prints nothing if there are none, if the argument is no name, or if the database does not answer
//! within a second; the shell then offers what the script itself contains. It never asks for a
//! password.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Command};
use clap_complete::Shell;
use conninfo::{ConnectionSource, ConnectionTarget, Environment, Layer, SourceNames};
use queue::names::{self, NameKind};
use tokio::time::timeout;

use crate::args::{CompleteArgs, GivenDatabase, Global};
use crate::session::connection_target;
use crate::session::contexts::ContextsFile;

/// Time within which the database has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

const BASH: &str = include_str!("completion/names.bash");
const ZSH: &str = include_str!("completion/names.zsh");
const FISH: &str = include_str!("completion/names.fish");

/// Returns the completion script of `pgmill` for a shell.
#[must_use]
pub fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    // Generate into memory, because `generate` panics if its output is closed.
    clap_complete::generate(shell, &mut crate::command(), "pgmill", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + "\n" + BASH,
        Shell::Zsh => {
            // The names come first; the generated function follows under another name.
            let script = script.replace("\n_pgmill() {", "\n_pgmill_arguments() {");
            let end = script.rfind("\nif [ \"$funcstack[1]\"").unwrap_or(script.len());
            format!("{}\n{ZSH}", &script[..end])
        }
        Shell::Fish => script + "\n" + FISH,
        _ => script,
    }
}

/// Prints the names that complete the word at `index`, one per line.
pub(crate) async fn run(args: &CompleteArgs) -> String {
    let (index, words) = (args.index, &args.words);
    let command = crate::command();
    let Some(cursor) = Cursor::at(&command, words, index) else { return String::new() };
    let names = if cursor.argument.get_id() == "context" {
        let file = ContextsFile::read(contexts_file(&args.global, words).as_deref());
        let names = file.map(|file| file.names().into_iter().map(str::to_owned).collect());
        names.unwrap_or_default()
    } else {
        let Some(kind) = cursor.kind() else { return String::new() };
        let names = query(&args.global, words, kind, &cursor.prefix);
        timeout(ANSWER_TIMEOUT, names).await.ok().flatten().unwrap_or_default()
    };
    // A name with a line break could not be told from two names.
    let names = names.iter().filter(|name| !name.contains(char::is_control));
    names.map(|name| format!("{}{name}\n", cursor.lead)).collect()
}

/// Reads the names with the connection that the command line specifies. Errors are not reported.
async fn query(
    global: &Global,
    words: &[String],
    kind: NameKind,
    prefix: &str,
) -> Option<Vec<String>> {
    let text = value_of(words, "--database-url").map(|text| (text, Layer::Arguments));
    let file = value_of(words, "--database-url-file").map(|file| (file.into(), Layer::Arguments));
    // Without these flags, the variables apply, which this command has read itself.
    let given = ConnectionSource::choose(SourceNames::DATABASE, text, file).ok()?;
    let given = given
        .map(|(source, layer)| GivenDatabase::Source(source, layer))
        .or_else(|| value_of(words, "--context").map(GivenDatabase::Context))
        .or_else(|| global.given.clone());
    let target = match given {
        // Without the warnings about the connection string.
        Some(GivenDatabase::Source(source, _)) => {
            let environment = Environment::from_process();
            let target = ConnectionTarget::from_source(Some(source), &environment).ok()?;
            target.with_safe_search_path()
        }
        other => connection_target(other.as_ref(), contexts_file(global, words).as_deref()).ok()?,
    };
    let target = target.with_application_name("pgmill completion");
    let (client, connection) = conninfo::open_client(&target).await.ok()?;
    tokio::select! {
        _ = connection => None,
        names = names::names(&client, kind, prefix) => names.ok(),
    }
}

/// Returns the value of an option in the command line that is being completed.
fn value_of(words: &[String], name: &str) -> Option<String> {
    let option = || {
        let at = words.iter().position(|word| word == name)?;
        // Bash splits words at the equals sign.
        words[at + 1..].iter().find(|word| *word != "=").cloned()
    };
    let start = format!("{name}=");
    let inline = || words.iter().find_map(|word| word.strip_prefix(&start).map(str::to_owned));
    option().or_else(inline)
}

fn contexts_file(global: &Global, words: &[String]) -> Option<PathBuf> {
    value_of(words, "--contexts").map(PathBuf::from).or_else(|| global.contexts_file.clone())
}

/// The argument at the cursor.
struct Cursor<'a> {
    /// Names of the subcommands before it.
    verbs: Vec<&'a str>,
    argument: &'a Arg,
    /// The part of the value that is already typed.
    prefix: String,
    /// Text of the word before the value, such as `--queue=`.
    lead: String,
}

impl<'a> Cursor<'a> {
    /// Finds the argument of the word at `index`; `None` if the word is an option or a verb.
    fn at(root: &'a Command, words: &[String], index: usize) -> Option<Self> {
        let current = words.get(index).map_or("", String::as_str);
        let (mut command, mut verbs, mut position) = (root, Vec::new(), 0);
        let mut pending: Option<&'a Arg> = None;
        for word in words.get(1..index)? {
            if word == "=" {
                continue;
            }
            if pending.take().is_some() {
                continue;
            }
            if let Some(name) = word.strip_prefix("--") {
                pending = option(root, command, name).filter(|it| it.get_action().takes_values());
            } else if let Some(next) = command.find_subcommand(word) {
                verbs.push(next.get_name());
                (command, position) = (next, 0);
            } else if !word.starts_with('-') {
                position += 1;
            }
        }
        let found = |argument: &'a Arg, value: &str, lead: &str| {
            // Only the last of several values is completed.
            let start = argument.get_value_delimiter().and_then(|it| value.rfind(it));
            let (typed, prefix) = value.split_at(start.map_or(0, |at| at + 1));
            let (prefix, lead) = (prefix.to_owned(), format!("{lead}{typed}"));
            Self { verbs: verbs.clone(), argument, prefix, lead }
        };
        if let Some(argument) = pending {
            return Some(found(argument, if current == "=" { "" } else { current }, ""));
        }
        if let Some((name, value)) = current.strip_prefix("--").and_then(|it| it.split_once('=')) {
            return Some(found(option(root, command, name)?, value, &format!("--{name}=")));
        }
        let last = command.get_positionals().count().checked_sub(1)?;
        let argument = command.get_positionals().nth(position.min(last))?;
        let repeats = argument.get_num_args().is_some_and(|range| range.max_values() > 1);
        (position <= last || repeats).then(|| found(argument, current, ""))
    }

    /// Returns the kind of the names that the argument may have.
    fn kind(&self) -> Option<NameKind> {
        match (self.verbs.as_slice(), self.argument.get_id().as_str()) {
            (["schedule", ..], "jobs") | (_, "job") => Some(NameKind::Job),
            (_, "queue") => Some(NameKind::Queue),
            (_, "schedule") => Some(NameKind::Schedule),
            (_, "run" | "runs") => Some(NameKind::Run),
            (_, "host") => Some(NameKind::Host),
            (_, "subscription") => Some(NameKind::Subscription),
            _ if !self.argument.is_positional() => None,
            (["queue", ..], _) => Some(NameKind::Queue),
            (["job", ..], _) => Some(NameKind::Job),
            (["schedule", ..] | ["why"], _) => Some(NameKind::Schedule),
            (["group", ..], _) => Some(NameKind::Group),
            (["profile" | "target", ..], _) => Some(NameKind::Profile),
            (["limit", ..], _) => Some(NameKind::LimitKey),
            (["subscription", ..], "name") => Some(NameKind::Subscription),
            (["worker", ..], _) => Some(NameKind::Worker),
            (["run", ..], "ids" | "id") => Some(NameKind::Run),
            _ => None,
        }
    }
}

fn option<'a>(root: &'a Command, command: &'a Command, name: &str) -> Option<&'a Arg> {
    let mut all = command.get_arguments().chain(root.get_arguments());
    all.find(|argument| argument.get_long() == Some(name))
}
