//! HTML escaping, and HTML built by the console.

use std::fmt::{self, Write};

use askama::filters::{Escaper, Safe};
use terminal::is_invisible;

/// HTML built by the console, with all external text escaped.
pub(crate) type Markup = Safe<String>;

/// Constructs a [`Markup`].
#[expect(non_snake_case, reason = "mimics the constructor of a tuple struct")]
pub(crate) fn Markup(html: String) -> Markup {
    Safe(html)
}

/// Maximum length of a displayed text, in characters. Longer texts are truncated; the page links to
/// the full text.
pub(crate) const MAX_TEXT_CHARS: usize = 5_000;

/// Escapes every text in a template or SVG. HTML special characters become character references,
/// also inside quotes. Invisible characters are written as escapes, as in the terminal programs, so
/// that no text changes the direction of its neighbours. Long texts are truncated.
#[derive(Clone, Copy)]
pub(crate) struct HtmlEscaper;

impl Escaper for HtmlEscaper {
    fn write_escaped_str<W: Write>(&self, mut to: W, text: &str) -> fmt::Result {
        let cut = text.char_indices().nth(MAX_TEXT_CHARS).map(|(at, _)| text.split_at(at));
        let (shown, rest) = cut.unwrap_or((text, ""));
        for c in shown.chars() {
            if is_invisible(c) {
                write!(to, "{}", c.escape_default())?;
            } else {
                write_reference(&mut to, c)?;
            }
        }
        if rest.is_empty() { Ok(()) } else { write!(to, "… and {} bytes more", rest.len()) }
    }
}

fn write_reference(to: &mut impl Write, c: char) -> fmt::Result {
    match c {
        '&' | '<' | '>' | '"' | '\'' => write!(to, "&#{};", u32::from(c)),
        other => to.write_char(other),
    }
}

/// Escapes a text outside of a template.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Writing to a string does not fail.
    let _ = HtmlEscaper.write_escaped_str(&mut out, text);
    out
}

/// Escapes the value of a form field without truncation, so that the form returns the same value.
pub(crate) fn attribute_value(text: impl AsRef<str>) -> Markup {
    let text = text.as_ref();
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // A parser would turn a raw carriage return into a line feed.
        let _ = if c == '\r' { out.write_str("&#13;") } else { write_reference(&mut out, c) };
    }
    Markup(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_and_invisible_characters_are_escaped() {
        assert_eq!(escaped("<a b='\"&'>"), "&#60;a b=&#39;&#34;&#38;&#39;&#62;");
        assert_eq!(escaped("a\u{202e}\u{1b}b\n"), "a\\u{202e}\\u{1b}b\n");
        assert_eq!(attribute_value("\u{202e}\"\r\n").0, "\u{202e}&#34;&#13;\n");
    }

    #[test]
    fn a_long_text_is_truncated_at_a_character_boundary() {
        let long = escaped(&"é".repeat(MAX_TEXT_CHARS + 2));
        assert_eq!(long, format!("{}… and 4 bytes more", "é".repeat(MAX_TEXT_CHARS)));
    }
}
