//! Statements that build an index without blocking writes, and leave an invalid index if they fail.

use super::Statement;
use super::tokens::{Kind, Token};

/// A `CREATE INDEX CONCURRENTLY` or a `REINDEX` with CONCURRENTLY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConcurrentBuild<'a> {
    /// Name and table of an index that is built only if there is none of its name, as written.
    pub unless_exists: Option<(&'a str, &'a str)>,
}

/// Returns what the statement builds; `None` if it is another statement.
pub fn concurrent_build<'a>(statement: &Statement<'a>) -> Option<ConcurrentBuild<'a>> {
    let mut words = statement.leading_words();
    let mut next =
        |wanted: &str| words.next().is_some_and(|word| word.eq_ignore_ascii_case(wanted));
    if next("CREATE") {
        return created_index(statement);
    }
    let mut tokens = statement.tokens();
    let reindexes = tokens.next().is_some_and(|token| tokens.word(token, "REINDEX"))
        && statement.tokens().any(|token| tokens.word(token, "CONCURRENTLY"));
    reindexes.then_some(ConcurrentBuild { unless_exists: None })
}

/// Parses `CREATE [UNIQUE] INDEX CONCURRENTLY [IF NOT EXISTS name] ON [ONLY] table`.
fn created_index<'a>(statement: &Statement<'a>) -> Option<ConcurrentBuild<'a>> {
    let text = statement.text();
    let mut tokens = statement.tokens().skip(1).peekable();
    let all = statement.tokens();
    let mut take = |word: &str| tokens.next_if(|token| all.word(*token, word)).is_some();
    take("UNIQUE");
    if !(take("INDEX") && take("CONCURRENTLY")) {
        return None;
    }
    if !(take("IF") && take("NOT") && take("EXISTS")) {
        return Some(ConcurrentBuild { unless_exists: None });
    }
    let name = tokens.next()?;
    tokens.next_if(|token| all.word(*token, "ON"))?;
    tokens.next_if(|token| all.word(*token, "ONLY"));
    let table = tokens.next()?;
    let mut end = table.end;
    while tokens.next_if(|token| token.kind == Kind::Dot).is_some() {
        end = tokens.next()?.end;
    }
    let named = |token: &Token| matches!(token.kind, Kind::Word | Kind::Quoted);
    (named(&name) && named(&table)).then(|| ConcurrentBuild {
        unless_exists: Some((&text[name.start..name.end], &text[table.start..end])),
    })
}

#[cfg(test)]
mod tests {
    use super::super::statements;
    use super::*;

    fn read(sql: &str) -> Option<Option<(&str, &str)>> {
        concurrent_build(&statements(sql)[0]).map(|build| build.unless_exists)
    }

    #[test]
    fn the_index_and_its_table_are_found() {
        for sql in [
            "CREATE INDEX CONCURRENTLY i ON t (a)",
            "create /* a */ unique index concurrently ON t (a)",
            "REINDEX INDEX CONCURRENTLY i",
            "REINDEX (VERBOSE, CONCURRENTLY) TABLE s.t",
        ] {
            assert_eq!(read(sql), Some(None), "{sql}");
        }
        for (sql, name, table) in [
            ("CREATE INDEX CONCURRENTLY IF NOT EXISTS i ON t (a)", "i", "t"),
            (
                "CREATE UNIQUE INDEX CONCURRENTLY if not exists \"I j\" ON ONLY s . \"t\"\"u\"(a)",
                "\"I j\"",
                "s . \"t\"\"u\"",
            ),
            (
                "CREATE INDEX CONCURRENTLY IF NOT EXISTS i -- a\n ON a.b.c USING gin (d)",
                "i",
                "a.b.c",
            ),
        ] {
            assert_eq!(read(sql), Some(Some((name, table))), "{sql}");
        }
        for sql in [
            "CREATE INDEX IF NOT EXISTS i ON t (a)",
            "CREATE TABLE concurrently (a int)",
            "REINDEX TABLE t",
            "SELECT 'REINDEX CONCURRENTLY'",
        ] {
            assert_eq!(read(sql), None, "{sql}");
        }
    }
}
