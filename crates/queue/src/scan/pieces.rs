//! Splits a script into pieces without gaps, for syntax highlighting.

use super::tokens::{Kind, Tokens};

/// Kind of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceKind {
    /// An unquoted identifier or keyword.
    Word,
    /// A constant in quotes or dollar quotes.
    Constant,
    /// An identifier in double quotes.
    Identifier,
    /// A number.
    Number,
    /// A comment and the white space around it.
    Comment,
    /// White space, operators, brackets.
    Other,
}

/// A piece of the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Kind of the piece.
    pub kind: PieceKind,
    /// Text of the piece.
    pub text: &'a str,
}

/// Splits the whole script; the concatenated texts of the pieces are the script.
pub fn pieces(sql: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    for token in Tokens::new(sql) {
        let text = &sql[token.start..token.end];
        between(&mut found, &sql[at..token.start]);
        let kind = match token.kind {
            Kind::Word => PieceKind::Word,
            Kind::Quoted if text.starts_with('"') => PieceKind::Identifier,
            Kind::Quoted if text.starts_with("/*") => PieceKind::Comment,
            Kind::Quoted => PieceKind::Constant,
            Kind::Other if text.bytes().all(|byte| byte.is_ascii_digit()) => PieceKind::Number,
            _ => PieceKind::Other,
        };
        found.push(Piece { kind, text });
        at = token.end;
    }
    between(&mut found, &sql[at..]);
    found
}

/// Adds white space and comments, which are not tokens.
fn between<'a>(found: &mut Vec<Piece<'a>>, text: &'a str) {
    if !text.is_empty() {
        let space = text.bytes().all(|byte| byte.is_ascii_whitespace() || byte == 0x0b);
        let kind = if space { PieceKind::Other } else { PieceKind::Comment };
        found.push(Piece { kind, text });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pieces_have_the_expected_kinds() {
        let kinds: Vec<(PieceKind, &str)> = pieces("SELECT 'a' -- b\n, \"c\", 12")
            .iter()
            .map(|piece| (piece.kind, piece.text))
            .filter(|(kind, _)| *kind != PieceKind::Other)
            .collect();
        let expected = [
            (PieceKind::Word, "SELECT"),
            (PieceKind::Constant, "'a'"),
            (PieceKind::Comment, " -- b\n"),
            (PieceKind::Identifier, "\"c\""),
            (PieceKind::Number, "1"),
            (PieceKind::Number, "2"),
        ];
        assert_eq!(kinds, expected);
    }

    proptest! {
        #[test]
        fn pieces_cover_the_whole_script(sql in "(?s).{0,60}") {
            let whole: String = pieces(&sql).iter().map(|piece| piece.text).collect();
            prop_assert_eq!(whole, sql);
        }
    }
}
