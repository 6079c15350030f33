//! A small SQL scanner: splits a script into statements, and finds statements that a task may not
//! contain.
//!
//! | task | file |
//! |---|---|
//! | tokens of SQL, by the rules of the server's lexer | `tokens` |
//! | pieces of a script without gaps, for syntax highlighting | `pieces` |
//! | builds of an index with CONCURRENTLY, which can leave it invalid | `index` |
//!
//! The scanner knows tokens and very little grammar.
//!
//! A semicolon separates statements unless it is in parentheses (`CREATE RULE … DO (a; b)`) or in a
//! `BEGIN ATOMIC … END` body. psql finds the end of such a body by counting CASE and END. Here END
//! counts only as the first word after a semicolon, which is the only place where the grammar
//! allows it. So CASE need not be counted, and a column labelled `end` does not end the body.
//!
//! A quote, a comment, a parenthesis or a body that is not terminated extends to the end of the
//! text. The server then receives the text as a whole and reports the syntax error.
//!
//! Limit: the scanner assumes that `standard_conforming_strings` is on, which is the server's
//! default.

mod index;
mod pieces;
mod tokens;

use std::fmt;

pub use index::{ConcurrentBuild, concurrent_build};
pub use pieces::{Piece, PieceKind, pieces};
use tokens::{Kind, Token, Tokens};

/// A statement of a script: its text without the semicolon, and its position.
///
/// The text begins with the comment before the statement, if there is one, because the comment may
/// contain optimizer hints. It ends with the last token, so that appended text never becomes part
/// of a comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> Statement<'a> {
    /// Returns the statement's SQL without the terminating semicolon; never empty.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// Returns the byte offset of [`text`](Self::text) in the script.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the unquoted words at the start of the statement, in the script's spelling and
    /// without comments: `CREATE`, `TABLE`, `t` for `CREATE /* new */ TABLE t (a int)`.
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

/// A statement that a task may not contain. Each offset is the byte in the script at which the
/// first word of the statement, or the byte order mark, begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forbidden {
    /// Begins, ends or divides a transaction, which only the worker may do.
    TransactionControl {
        /// The command in upper case, for example `COMMIT` or `START TRANSACTION`.
        word: &'static str,
        /// Byte offset in the script.
        offset: usize,
    },
    /// A byte order mark (U+FEFF) outside of constants, quoted names and comments.
    ByteOrderMark {
        /// Byte offset in the script.
        offset: usize,
    },
    /// `COPY … FROM STDIN`, for which no client sends the data.
    CopyFromStdin {
        /// Byte offset in the script.
        offset: usize,
    },
    /// `COPY … TO STDOUT`, for which no client receives the data.
    CopyToStdout {
        /// Byte offset in the script.
        offset: usize,
    },
}

impl Forbidden {
    /// Returns the byte offset of the statement's first word, or of the mark, in the script.
    pub fn offset(&self) -> usize {
        match *self {
            Self::TransactionControl { offset, .. }
            | Self::ByteOrderMark { offset }
            | Self::CopyFromStdin { offset }
            | Self::CopyToStdout { offset } => offset,
        }
    }
}

impl Forbidden {
    /// Returns a hint that suggests an alternative.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::TransactionControl { .. } => {
                "Remove it, because a task is one transaction. For a statement that cannot run in one, \
                 or a procedure that commits, use --mode autocommit."
            }
            Self::ByteOrderMark { .. } => {
                "Some editors write this invisible character at the start of a file. Remove it where files \
                 were joined."
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
                write!(
                    f,
                    "{word} is not allowed in a task, because the worker owns the transaction"
                )
            }
            Self::ByteOrderMark { .. } => {
                f.write_str("the statement has a byte order mark (U+FEFF) that is not at its start")
            }
            Self::CopyFromStdin { .. } => {
                f.write_str("COPY FROM STDIN is not allowed in a task: no client sends the data")
            }
            Self::CopyToStdout { .. } => f.write_str(
                "COPY TO STDOUT is not allowed in a task, because no client receives the data",
            ),
        }
    }
}

/// Splits a script into its statements, in order, in one pass over the bytes. Drops pieces that
/// contain only white space and comments.
pub fn statements(sql: &str) -> Vec<Statement<'_>> {
    Splitter::new(sql).collect()
}

/// Error message for a task whose plan cannot be saved.
pub const EXPLAINABLE: &str = "explain requires one statement that EXPLAIN supports: SELECT, INSERT, UPDATE, \
                               DELETE, MERGE, VALUES, TABLE or WITH";

/// Returns whether the script is a single statement that EXPLAIN supports. Checks the first word;
/// the server checks a statement in parentheses.
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

/// Returns whether another statement may follow `sql` after a line break and a semicolon, because
/// `sql` leaves nothing open.
pub fn can_be_followed(sql: &str) -> bool {
    const NEXT: &str = "SELECT";
    let followed = format!("{sql}\n;{NEXT}");
    let last = statements(&followed).last().copied();
    last.is_some_and(|last| last.text() == NEXT && last.offset() == followed.len() - NEXT.len())
}

/// The character with which some editors begin a file. The server takes it for a part of a word.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Returns the text without a byte order mark at its start, as `mill.check_statement` does.
pub fn without_byte_order_mark(text: &str) -> &str {
    text.trim_start_matches(BYTE_ORDER_MARK)
}

/// Returns the first byte order mark, or else the first statement, that a task may not contain.
///
/// Does not detect transaction control in strings (`DO $$ … COMMIT … $$`) or in called procedures.
pub fn forbidden(sql: &str) -> Option<Forbidden> {
    if sql.contains(BYTE_ORDER_MARK)
        && let Some(offset) = Tokens::new(sql)
            .filter(|token| token.kind == Kind::Word)
            .find_map(|word| Some(word.start + sql[word.start..word.end].find(BYTE_ORDER_MARK)?))
    {
        return Some(Forbidden::ByteOrderMark { offset });
    }
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

/// Commands that are transaction control in every form.
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
    // A prepared statement may itself have the name "transaction". AS or parameter types then
    // follow.
    let named = rest.next().is_some_and(|token| token.kind == Kind::Open || rest.word(token, "AS"));
    (!named).then_some("PREPARE TRANSACTION")
}

/// Returns the COPY statement if the client would have to send or receive its data. The tokens
/// continue after COPY. The first FROM or TO outside parentheses gives the direction: both words
/// are reserved, so they are names only after a dot. The grammar accepts STDIN and STDOUT for
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

/// Returns the name of the routine if the script is one `CALL name($1)` with nothing else. The name
/// may have a schema: `billing.send`. It has lower-case letters, because the server folds unquoted
/// names; a quoted name does not match.
pub fn call_with_one_parameter(sql: &str) -> Option<String> {
    let [statement] = statements(sql)[..] else { return None };
    let text = statement.text();
    let mut tokens = statement.tokens();
    if !tokens.next().is_some_and(|token| tokens.word(token, "CALL")) {
        return None;
    }
    let mut name = String::new();
    let open = loop {
        let word = tokens.next().filter(|token| token.kind == Kind::Word)?;
        name.push_str(&text[word.start..word.end]);
        let next = tokens.next()?;
        match next.kind {
            Kind::Dot => name.push('.'),
            Kind::Open => break next,
            _ => return None,
        }
    };
    let argument = text[open.end..].strip_suffix(')')?;
    (argument.trim() == "$1").then(|| name.to_ascii_lowercase())
}

/// Splits the tokens at the semicolons that separate statements.
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

/// Progress in `CREATE [OR REPLACE] FUNCTION|PROCEDURE … BEGIN ATOMIC … ; END`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    Create,
    CreateOr,
    CreateOrReplace,
    /// Between FUNCTION or PROCEDURE and the body.
    Routine,
    /// After BEGIN. The body starts only if ATOMIC follows, because BEGIN can also be a name.
    RoutineBegin,
    /// In the body, at a place where a statement or END may begin.
    BodyStart,
    /// In the body, within a statement.
    Body,
    /// In any other statement, or after a body.
    Plain,
}

impl Place {
    fn inside_body(self) -> bool {
        matches!(self, Self::BodyStart | Self::Body)
    }

    /// Returns the place after a token that is outside parentheses.
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
