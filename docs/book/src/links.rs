//! Links of a page. In the repository they are relative to the file; in the book, a link to another
//! page is relative to the place of that page, and a link to a file that is not in the book refers
//! to the repository.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Result, bail, ensure};
use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};

use crate::page::{in_book, relative, resolved};
use crate::root;

/// The targets of links.
pub(crate) struct Links<'a> {
    /// The pages of the book: path in the repository, path in the book.
    pub(crate) chapters: &'a BTreeMap<String, String>,
    /// Address in front of the path of a file in the repository; empty if it is not known.
    pub(crate) address: &'a str,
}

/// A link or an image in the text of a page.
struct Found {
    range: Range<usize>,
    /// The part between the brackets.
    text: Range<usize>,
    destination: String,
    image: bool,
}

impl Links<'_> {
    /// Returns the text of a page with links that suit the book. `file` is the path of the page in
    /// the repository.
    ///
    /// # Errors
    /// Returns an error if a link has no target.
    pub(crate) fn rewritten(&self, file: &str, text: &str) -> Result<String> {
        let mut result = String::new();
        let mut done = 0;
        for link in found(file, text)? {
            let inside_another = link.range.start < done;
            if inside_another {
                continue;
            }
            let Some(replacement) = self.replacement(file, text, &link)? else { continue };
            result.push_str(&text[done..link.range.start]);
            result.push_str(&replacement);
            done = link.range.end;
        }
        result.push_str(&text[done..]);
        Ok(result)
    }

    fn replacement(&self, file: &str, text: &str, link: &Found) -> Result<Option<String>> {
        let destination = &link.destination;
        if destination.starts_with('#') || destination.contains(':') {
            return Ok(None);
        }
        let (path, anchor) = match destination.split_once('#') {
            Some((path, anchor)) => (path, format!("#{anchor}")),
            None => (&**destination, String::new()),
        };
        let target = resolved(file, path);
        ensure!(root().join(&target).exists(), "{file} links to {path}, which does not exist");
        let label = &text[link.text.clone()];
        let page = in_book(file);
        let index = format!("{target}/README.md");
        let chapter = self.chapters.get(&target).or_else(|| self.chapters.get(&index));
        let place = match chapter {
            Some(chapter) => Some(relative(&page, chapter)),
            // mdBook copies the other files of docs/.
            None if target.starts_with("docs/") && !target.ends_with(".md") => {
                Some(relative(&page, &in_book(&target)))
            }
            None => None,
        };
        let address = match (place, self.address) {
            (Some(place), _) => place + &anchor,
            (None, "") if link.image => bail!("{file}: the image {path} is not in docs/"),
            (None, "") => {
                let name = target.rsplit('/').next().unwrap_or(&target);
                let named = label.contains(name);
                return Ok(Some(if named {
                    label.to_owned()
                } else {
                    format!("{label} (`{target}`)")
                }));
            }
            (None, address) => format!("{}/{target}{anchor}", address.trim_end_matches('/')),
        };
        let mark = if link.image { "!" } else { "" };
        Ok(Some(format!("{mark}[{label}]({address})")))
    }
}

/// Returns the links and images of a page in the order of the text.
///
/// # Errors
/// Returns an error for a link with a reference, because its destination is elsewhere in the text.
fn found(file: &str, text: &str) -> Result<Vec<Found>> {
    let mut found: Vec<Found> = Vec::new();
    let mut inside = false;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let (link_type, destination, image) = match event {
            Event::Start(Tag::Link { link_type, dest_url, .. }) => (link_type, dest_url, false),
            Event::Start(Tag::Image { link_type, dest_url, .. }) => (link_type, dest_url, true),
            Event::End(TagEnd::Link | TagEnd::Image) => {
                inside = false;
                continue;
            }
            _ => {
                if let Some(link) = found.last_mut().filter(|_| inside) {
                    link.text.start = link.text.start.min(range.start);
                    link.text.end = link.text.end.max(range.end);
                }
                continue;
            }
        };
        match link_type {
            LinkType::Autolink | LinkType::Email => continue,
            LinkType::Inline => {}
            _ => bail!("{file} links to {destination}: expected [text](path)"),
        }
        inside = true;
        let text = range.end..range.start;
        found.push(Found { range, text, destination: destination.into_string(), image });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(file: &str, address: &str, text: &str) -> Result<String> {
        let chapters = ["README.md", "ARCHITECTURE.md", "samples/README.md", "docs/runs.md"];
        let chapters = chapters.map(|file| (file.to_owned(), in_book(file))).into();
        Links { chapters: &chapters, address }.rewritten(file, text)
    }

    #[test]
    fn a_link_to_a_page_of_the_book_stays_in_the_book() {
        for (file, from, to) in [
            ("README.md", "see [runs](docs/runs.md#edges).", "see [runs](runs.md#edges)."),
            ("docs/runs.md", "[`a`](../ARCHITECTURE.md)", "[`a`](ARCHITECTURE.md)"),
            ("docs/runbooks/no-workers.md", "[runs](../runs.md)", "[runs](../runs.md)"),
            ("docs/runs.md", "[samples](../samples/)", "[samples](samples/index.md)"),
            ("README.md", "![o](docs/console/overview.png)", "![o](console/overview.png)"),
            (
                "docs/runs.md",
                "[here](#here), <http://127.0.0.1:8787/>",
                "[here](#here), <http://127.0.0.1:8787/>",
            ),
            ("docs/runs.md", "`[a](b)`\n\n```\n[a](b)\n```", "`[a](b)`\n\n```\n[a](b)\n```"),
        ] {
            assert_eq!(rewritten(file, "", from).unwrap(), to);
        }
    }

    #[test]
    fn a_link_to_another_file_refers_to_the_repository_or_becomes_its_path() {
        let text = "by [`versions.rs`](../tests/project/versions.rs), [rules](../deny.toml#x)";
        assert_eq!(
            rewritten("docs/runs.md", "https://git.example.com/blob/main/", text).unwrap(),
            "by [`versions.rs`](https://git.example.com/blob/main/tests/project/versions.rs), \
             [rules](https://git.example.com/blob/main/deny.toml#x)"
        );
        let plain = rewritten("docs/runs.md", "", text).unwrap();
        assert_eq!(plain, "by `versions.rs`, rules (`deny.toml`)");
    }

    #[test]
    fn a_link_without_a_target_is_an_error() {
        for text in
            ["[a](missing.md)", "[a][b]\n\n[b]: runs.md", "![a](../crates/console/static/no.png)"]
        {
            assert!(rewritten("docs/runs.md", "", text).is_err(), "{text}");
        }
    }
}
