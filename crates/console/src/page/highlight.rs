//! SQL syntax highlighting with the error position marked.

use queue::scan::{PieceKind, pieces};

use crate::escape::{Markup, escaped};

/// Longer statements, in bytes, are shown without highlighting and truncated.
const MAX_BYTES: usize = 50_000;

/// Reserved words, and words that begin a statement or a clause.
const KEYWORDS: &str = " add all alter analyze and any array as asc at atomic begin between by call \
    cascade case cast check cluster collate column comment commit concurrently conflict constraint \
    copy create cross current current_date current_timestamp cursor database declare default delete \
    desc distinct do drop else end except exception execute exists explain extract false fetch filter \
    first following for foreign format from full function grant group having if ilike in index inner \
    insert instead intersect interval into is join key lateral left like limit listen lock locked loop \
    materialized merge natural no not nothing notice notify null nulls of offset on only or order \
    outer over partition perform policy preceding primary procedure raise range recursive references \
    refresh reindex rename replace restrict return returning returns revoke right role rollback row \
    rows schema select sequence session set share skip some table temp temporary then to transaction \
    trigger true truncate union unique unlogged update using vacuum values view when where while \
    window with without work ";

/// Highlights a statement. `position` is the error position in characters, from 1.
pub(crate) fn statement(sql: &str, position: Option<u32>) -> Markup {
    if sql.len() > MAX_BYTES {
        return Markup(escaped(sql));
    }
    let error = position.and_then(|it| {
        let before = usize::try_from(it).ok()?.checked_sub(1)?;
        sql.char_indices().nth(before).map(|(offset, _)| offset)
    });
    let mut html = String::with_capacity(sql.len() * 2);
    let mut at = 0;
    for piece in pieces(sql) {
        let end = at + piece.text.len();
        let inside = error.is_some_and(|offset| (at..end).contains(&offset));
        let text = escaped(piece.text);
        let class = class(piece.kind, piece.text);
        match (class, inside) {
            ("", false) => html.push_str(&text),
            (class, false) => html.push_str(&format!("<span class=\"{class}\">{text}</span>")),
            (class, true) => html.push_str(&format!("<mark class=\"{class}\">{text}</mark>")),
        }
        at = end;
    }
    Markup(html)
}

fn class(kind: PieceKind, text: &str) -> &'static str {
    match kind {
        PieceKind::Word if keyword(text) => "kw",
        PieceKind::Word | PieceKind::Other | PieceKind::Identifier => "",
        PieceKind::Constant => "str",
        PieceKind::Number => "num",
        PieceKind::Comment => "com",
    }
}

fn keyword(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && KEYWORDS.contains(&format!(" {} ", word.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keywords_are_highlighted_and_the_error_is_marked() {
        let shown = statement("SELECT '<b>' -- x\nFROM nowhere", Some(24)).0;
        assert_eq!(
            shown,
            "<span class=\"kw\">SELECT</span> <span class=\"str\">&#39;&#60;b&#62;&#39;</span>\
             <span class=\"com\"> -- x\n</span><span class=\"kw\">FROM</span> <mark class=\"\">nowhere</mark>"
        );
    }

    proptest! {
        #[test]
        fn the_output_contains_only_known_tags(sql in "(?s)[<>&\"'a-z $/*;-]{0,60}", position in 0_u32..70) {
            let shown = statement(&sql, Some(position)).0;
            let tags = ["<span class=\"kw\">", "<span class=\"str\">", "<span class=\"num\">",
                "<span class=\"com\">", "</span>", "<mark class=\"\">", "<mark class=\"kw\">",
                "<mark class=\"str\">", "<mark class=\"com\">", "<mark class=\"num\">", "</mark>"];
            let bare = tags.iter().fold(shown, |text, tag| text.replace(tag, ""));
            prop_assert_eq!(bare, escaped(&sql));
        }
    }
}
