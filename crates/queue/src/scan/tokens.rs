//! The tokens of SQL, as far as the scanner distinguishes them.
//!
//! The rules are those of the server's lexer (PostgreSQL documentation, "Lexical Structure", and
//! `src/backend/parser/scan.l`):
//!
//! - `'…'` and `U&'…'` end at the next quote that is not doubled; in `E'…'` a backslash also
//!   escapes the next character; a constant continues after white space that contains a line break;
//! - `"…"` ends at the next double quote that is not doubled;
//! - `$tag$…$tag$` quotes anything, but `a$b$c` is one identifier and `$1` is a parameter;
//! - a `--` comment ends with the line, and `/* /* */ */` nests;
//! - every byte from 0x80 up belongs to an identifier, so no Unicode tables are needed.
//!
//! A token that is not terminated extends to the end of the text.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An unquoted identifier or keyword.
    Word,
    /// A quoted constant or identifier, or an unterminated block comment.
    Quoted,
    Semicolon,
    Open,
    Close,
    Dot,
    /// Any other single byte: part of an operator or a number.
    Other,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The tokens of a script, without white space and comments.
///
/// Invariant: `at` and the bounds of a token are character boundaries. A token begins and ends at
/// an ASCII byte or at the edge of a word, and a word includes every byte from 0x80 up.
#[derive(Clone)]
pub(super) struct Tokens<'a> {
    pub(super) sql: &'a str,
    pub(super) at: usize,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(sql: &'a str) -> Self {
        Self { sql, at: 0 }
    }

    /// Returns whether the token is this keyword. Keywords match in any letter case; quoted words
    /// never match.
    pub(super) fn word(&self, token: Token, keyword: &str) -> bool {
        token.kind == Kind::Word && self.sql[token.start..token.end].eq_ignore_ascii_case(keyword)
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.sql.as_bytes().get(at).copied()
    }

    /// Returns the first position from `at` on that contains `wanted`, or the end.
    fn seek(&self, at: usize, wanted: impl Fn(u8) -> bool) -> usize {
        let bytes = self.sql.as_bytes();
        bytes[at..].iter().position(|&byte| wanted(byte)).map_or(bytes.len(), |found| at + found)
    }

    pub(super) fn skip_white_space(&mut self) {
        self.at = self.seek(self.at, |byte| !white_space(byte));
    }

    /// Skips a block comment. If the comment is not terminated, returns false and skips nothing.
    fn skip_block_comment(&mut self) -> bool {
        let mut at = self.at + 2;
        let mut depth = 1_usize;
        while depth > 0 {
            at = self.seek(at, |byte| byte == b'*' || byte == b'/');
            match (self.byte(at), self.byte(at + 1)) {
                (Some(b'/'), Some(b'*')) => (at, depth) = (at + 2, depth + 1),
                (Some(b'*'), Some(b'/')) => (at, depth) = (at + 2, depth - 1),
                (Some(_), Some(_)) => at += 1,
                _ => return false,
            }
        }
        self.at = at;
        true
    }

    /// Returns the end of a constant or identifier whose opening quote is at `open`. A doubled
    /// quote is part of its content.
    fn quoted_end(&self, open: usize) -> usize {
        let quote = self.sql.as_bytes()[open];
        let mut at = open + 1;
        loop {
            at = self.seek(at, |byte| byte == quote) + 1;
            if self.byte(at) != Some(quote) {
                return at.min(self.sql.len());
            }
            at += 1;
        }
    }

    /// Returns the end of an `E'…'` constant whose quote is at `open`.
    fn escaped_end(&self, open: usize) -> usize {
        let mut at = open + 1;
        loop {
            at = self.seek(at, |byte| byte == b'\\' || byte == b'\'');
            match (self.byte(at), self.byte(at + 1)) {
                (Some(b'\\'), Some(_)) | (Some(b'\''), Some(b'\'')) => at += 2,
                (Some(b'\''), _) => match self.continuation(at + 1) {
                    Some(quote) => at = quote + 1,
                    None => return at + 1,
                },
                _ => return self.sql.len(),
            }
        }
    }

    /// Returns the position of the quote that continues a constant closed before `at`. Between the
    /// two, only white space with a line break and `--` comments are allowed.
    fn continuation(&self, mut at: usize) -> Option<usize> {
        let mut line_break = false;
        loop {
            match self.byte(at)? {
                b'\n' | b'\r' => (at, line_break) = (at + 1, true),
                b'-' if self.byte(at + 1) == Some(b'-') => at = self.seek(at, end_of_line),
                byte if white_space(byte) => at += 1,
                byte => return (byte == b'\'' && line_break).then_some(at),
            }
        }
    }

    /// Returns the end of a dollar-quoted constant that begins at `open`; `None` if none begins
    /// there.
    fn dollar_end(&self, open: usize) -> Option<usize> {
        let tag = self.seek(open + 1, |byte| !word_part(byte));
        let starts = self.byte(open + 1).is_some_and(|byte| byte == b'$' || word_start(byte));
        if !starts || self.byte(tag) != Some(b'$') {
            return None;
        }
        let (delimiter, body) = self.sql.as_bytes()[open..].split_at(tag + 1 - open);
        let mut at = 0;
        // The loop is linear although it looks nested: a delimiter contains no dollar inside, so no
        // byte is compared twice.
        while let Some(dollar) = body[at..].iter().position(|&byte| byte == b'$') {
            at += dollar;
            if body[at..].starts_with(delimiter) {
                return Some(tag + 1 + at + delimiter.len());
            }
            at += 1;
        }
        Some(self.sql.len())
    }
}

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        let (first, second) = loop {
            self.skip_white_space();
            let pair = (self.byte(self.at)?, self.byte(self.at + 1));
            match pair {
                (b'-', Some(b'-')) => self.at = self.seek(self.at, end_of_line),
                (b'/', Some(b'*')) if self.skip_block_comment() => {}
                pair => break pair,
            }
        };
        let start = self.at;
        let (kind, end) = match first {
            b';' => (Kind::Semicolon, start + 1),
            b'(' => (Kind::Open, start + 1),
            b')' => (Kind::Close, start + 1),
            b'.' => (Kind::Dot, start + 1),
            b'\'' | b'"' => (Kind::Quoted, self.quoted_end(start)),
            b'e' | b'E' if second == Some(b'\'') => (Kind::Quoted, self.escaped_end(start + 1)),
            b'/' if second == Some(b'*') => (Kind::Quoted, self.sql.len()),
            b'$' => match self.dollar_end(start) {
                Some(end) => (Kind::Quoted, end),
                None => (Kind::Other, start + 1),
            },
            _ if word_start(first) => {
                (Kind::Word, self.seek(start, |byte| !word_part(byte) && byte != b'$'))
            }
            _ => (Kind::Other, start + 1),
        };
        self.at = end;
        Some(Token { kind, start, end })
    }
}

fn white_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn end_of_line(byte: u8) -> bool {
    byte == b'\n' || byte == b'\r'
}

fn word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn word_part(byte: u8) -> bool {
    word_start(byte) || byte.is_ascii_digit()
}
