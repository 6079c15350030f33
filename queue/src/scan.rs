//! A small SQL scanner: where one statement ends and the next begins, and which statements a task
//! may not contain.
//!
//! It knows tokens (`tokens.rs` has their rules) and very little grammar.
//!
//! A semicolon separates statements unless it stands in parentheses (`CREATE RULE … DO (a; b)`) or in
//! a `BEGIN ATOMIC … END` body. psql finds the end of such a body by counting CASE and END; here END
//! counts only as the first word after a semicolon, the one place the grammar allows it. So CASE
//! needs no counting, and a column labelled `end` ends nothing.
//!
//! What is not terminated (a quote, a comment, a parenthesis, a body) reaches to the end of the text:
//! the server sees it whole and reports the syntax error.
//!
//! Limit: `standard_conforming_strings` is taken to be on, the server's default.

mod pieces;
mod tokens;

use std::fmt;

pub use pieces::{Piece, PieceKind, pieces};
use tokens::{Kind, Token, Tokens};

/// One statement of a script: its text without the semicolon, and where it stands.
///
/// The text begins at a comment in front of the statement, if there is one (optimizer hints live
/// there), and ends with the last token, so that whatever is appended falls into no comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> Statement<'a> {
    /// The statement's SQL, without the terminating semicolon; never empty.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// The byte at which [`text`](Self::text) begins in the script.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The unquoted words the statement begins with, comments skipped, in the script's own spelling:
    /// `CREATE`, `TABLE`, `t` for `CREATE /* new */ TABLE t (a int)`.
    pub fn leading_words(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let text = self.text;
        self.tokens()
            .take_while(|token| token.kind == Kind::Word)
            .map(move |token| &text[token.start..token.end])
    }

    fn tokens(&self) -> Tokens<'a> {
        Tokens::new(self.text)
    }
}

/// A statement that a task may not contain; offsets are the byte in the script where the statement's
/// first word begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forbidden {
    /// Opens, ends or divides a transaction: the worker's own business.
    TransactionControl {
        /// The command in upper case, for example `COMMIT` or `START TRANSACTION`.
        word: &'static str,
        /// Byte offset in the script.
        offset: usize,
    },
    /// `COPY … FROM STDIN`: there is no client to send the data.
    CopyFromStdin {
        /// Byte offset in the script.
        offset: usize,
    },
    /// `COPY … TO STDOUT`: there is no client to take the data.
    CopyToStdout {
        /// Byte offset in the script.
        offset: usize,
    },
}

impl Forbidden {
    /// The byte in the script where the statement's first word begins.
    pub fn offset(&self) -> usize {
        match *self {
            Self::TransactionControl { offset, .. }
            | Self::CopyFromStdin { offset }
            | Self::CopyToStdout { offset } => offset,
        }
    }
}

impl Forbidden {
    /// What to do instead.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::TransactionControl { .. } => {
                "Leave it out: a task is one transaction. For a statement that cannot run in one, \
                 or a procedure that commits, use --mode autocommit."
            }
            Self::CopyFromStdin { .. } => {
                "Load from a file on the server (COPY … FROM 'file'), or put the rows into a table \
                 before the task runs."
            }
            Self::CopyToStdout { .. } => {
                "Write to a file on the server (COPY … TO 'file') or into a table."
            }
        }
    }
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TransactionControl { word, .. } => {
                write!(f, "{word} is not allowed in a task: the worker owns the transaction")
            }
            Self::CopyFromStdin { .. } => {
                f.write_str("COPY FROM STDIN is not allowed in a task: nobody sends the data")
            }
            Self::CopyToStdout { .. } => {
                f.write_str("COPY TO STDOUT is not allowed in a task: nobody takes the data")
            }
        }
    }
}

/// Splits a script into its statements, in order. Pieces of nothing but white space and comments are
/// dropped. One pass over the bytes.
pub fn statements(sql: &str) -> Vec<Statement<'_>> {
    Splitter::new(sql).collect()
}

/// What a task has to be for its plan to be kept.
pub const EXPLAINABLE: &str = "explain is for one statement that EXPLAIN takes: SELECT, INSERT, UPDATE, \
                               DELETE, MERGE, VALUES, TABLE or WITH";

/// Whether the script is one statement that EXPLAIN takes, by its first word; what is in parentheses
/// is for the server to judge.
pub fn explainable(sql: &str) -> bool {
    const WORDS: [&str; 8] =
        ["select", "insert", "update", "delete", "merge", "with", "values", "table"];
    let [statement] = statements(sql)[..] else { return false };
    match statement.tokens().next() {
        Some(first) => {
            let text = &statement.text()[first.start..first.end];
            text == "(" || WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
        }
        None => false,
    }
}

/// Whether a statement after `sql`, a line break and a semicolon is one of its own: nothing in `sql`
/// is left open.
pub fn can_be_followed(sql: &str) -> bool {
    const NEXT: &str = "SELECT";
    let followed = format!("{sql}\n;{NEXT}");
    let last = statements(&followed).last().copied();
    last.is_some_and(|last| last.text() == NEXT && last.offset() == followed.len() - NEXT.len())
}

/// The first statement of the script that a task may not contain.
///
/// Transaction control inside strings (`DO $$ … COMMIT … $$`) or called procedures is not looked for.
pub fn forbidden(sql: &str) -> Option<Forbidden> {
    Splitter::new(sql).find_map(|statement| {
        let mut tokens = statement.tokens();
        let first = tokens.next().filter(|token| token.kind == Kind::Word)?;
        let offset = statement.offset + first.start;
        let word = &statement.text[first.start..first.end];
        if word.eq_ignore_ascii_case("COPY") {
            return copy_through_client(tokens, offset);
        }
        transaction_control(word, tokens).map(|word| Forbidden::TransactionControl { word, offset })
    })
}

/// Commands that are transaction control whatever follows.
const TRANSACTION_COMMANDS: [&str; 7] =
    ["BEGIN", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE"];

fn transaction_control(first: &str, mut rest: Tokens<'_>) -> Option<&'static str> {
    if let Some(word) = TRANSACTION_COMMANDS.iter().find(|word| word.eq_ignore_ascii_case(first)) {
        return Some(word);
    }
    let start = first.eq_ignore_ascii_case("START");
    let prepare = first.eq_ignore_ascii_case("PREPARE");
    if !(start || prepare) || !rest.next().is_some_and(|token| rest.word(token, "TRANSACTION")) {
        return None;
    }
    if start {
        return Some("START TRANSACTION");
    }
    // A prepared statement may itself be named "transaction": then AS or parameter types follow.
    let named = rest.next().is_some_and(|token| token.kind == Kind::Open || rest.word(token, "AS"));
    (!named).then_some("PREPARE TRANSACTION")
}

/// Reads on after COPY. The first FROM or TO outside of parentheses gives the direction (both words
/// are reserved, so only behind a dot can they be a name); the grammar takes STDIN and STDOUT for
/// either direction.
fn copy_through_client(mut tokens: Tokens<'_>, offset: usize) -> Option<Forbidden> {
    let mut depth = 0_usize;
    let mut after_dot = false;
    while let Some(token) = tokens.next() {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            Kind::Word if depth == 0 && !after_dot => {
                let from = tokens.word(token, "FROM");
                if from || tokens.word(token, "TO") {
                    let target = tokens.next()?;
                    let client = tokens.word(target, "STDIN") || tokens.word(target, "STDOUT");
                    return client.then_some(if from {
                        Forbidden::CopyFromStdin { offset }
                    } else {
                        Forbidden::CopyToStdout { offset }
                    });
                }
            }
            _ => {}
        }
        after_dot = token.kind == Kind::Dot;
    }
    None
}

/// Cuts the tokens at the semicolons that separate statements.
struct Splitter<'a> {
    tokens: Tokens<'a>,
}

impl<'a> Splitter<'a> {
    fn new(sql: &'a str) -> Self {
        Self { tokens: Tokens::new(sql) }
    }
}

impl<'a> Iterator for Splitter<'a> {
    type Item = Statement<'a>;

    fn next(&mut self) -> Option<Statement<'a>> {
        let sql = self.tokens.sql;
        loop {
            self.tokens.skip_white_space();
            let offset = self.tokens.at;
            let mut place = Place::Start;
            let mut depth = 0_usize;
            let mut end = None;
            let mut terminated = false;
            while let Some(token) = self.tokens.next() {
                match token.kind {
                    Kind::Semicolon if depth == 0 && !place.inside_body() => {
                        terminated = true;
                        break;
                    }
                    Kind::Open => depth += 1,
                    Kind::Close => depth = depth.saturating_sub(1),
                    _ => {}
                }
                if depth == 0 || token.kind == Kind::Open {
                    place = place.after(token, &self.tokens);
                }
                end = Some(token.end);
            }
            match end {
                Some(end) => return Some(Statement { text: &sql[offset..end], offset }),
                None if terminated => {}
                None => return None,
            }
        }
    }
}

/// How much of `CREATE [OR REPLACE] FUNCTION|PROCEDURE … BEGIN ATOMIC … ; END` has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    Create,
    CreateOr,
    CreateOrReplace,
    /// Between FUNCTION or PROCEDURE and the body.
    Routine,
    /// BEGIN, which is the body's only if ATOMIC follows: it is a legal name, too.
    RoutineBegin,
    /// In the body, where a statement (or END) would begin.
    BodyStart,
    /// In the body, within a statement.
    Body,
    /// Any other statement, and what follows a body.
    Plain,
}

impl Place {
    fn inside_body(self) -> bool {
        matches!(self, Self::BodyStart | Self::Body)
    }

    /// The place after a token outside of parentheses.
    fn after(self, token: Token, tokens: &Tokens<'_>) -> Self {
        let word = |keyword| tokens.word(token, keyword);
        match self {
            Self::Start if word("CREATE") => Self::Create,
            Self::Create if word("OR") => Self::CreateOr,
            Self::CreateOr if word("REPLACE") => Self::CreateOrReplace,
            Self::Create | Self::CreateOrReplace if word("FUNCTION") || word("PROCEDURE") => {
                Self::Routine
            }
            Self::Start | Self::Create | Self::CreateOr | Self::CreateOrReplace | Self::Plain => {
                Self::Plain
            }
            Self::RoutineBegin if word("ATOMIC") => Self::BodyStart,
            Self::Routine | Self::RoutineBegin if word("BEGIN") => Self::RoutineBegin,
            Self::Routine | Self::RoutineBegin => Self::Routine,
            Self::BodyStart if word("END") => Self::Plain,
            Self::BodyStart | Self::Body if token.kind == Kind::Semicolon => Self::BodyStart,
            Self::BodyStart | Self::Body => Self::Body,
        }
    }
}

#[cfg(test)]
mod tests;
