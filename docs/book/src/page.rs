//! Paths of pages: in the repository, and in the book.

/// Folder that mdBook reads.
const DOCS: &str = "docs/";

/// Returns the path from the root of the repository of a path that is relative to docs/.
pub(crate) fn in_repository(path: &str) -> String {
    resolved(&format!("{DOCS}SUMMARY.md"), path)
}

/// Returns the path in the book of a file of the repository.
///
/// A README is the index of its folder; the README of the root is the first page of the book.
pub(crate) fn in_book(file: &str) -> String {
    let path = file.strip_prefix(DOCS).unwrap_or(file);
    match path.strip_suffix("README.md") {
        Some(folder) if folder.is_empty() || folder.ends_with('/') => format!("{folder}index.md"),
        _ => path.to_owned(),
    }
}

/// Returns the path from the root that `link` in `file` refers to.
pub(crate) fn resolved(file: &str, link: &str) -> String {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the link in `from` that refers to `to`. Both are paths from the root of the book.
pub(crate) fn relative(from: &str, to: &str) -> String {
    let (from, to): (Vec<&str>, Vec<&str>) = (from.split('/').collect(), to.split('/').collect());
    let folders = from.len() - 1;
    let common = from[..folders].iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..", folders - common);
    up.chain(to[common..].iter().copied()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_one_place_in_the_repository_and_one_in_the_book() {
        assert_eq!(in_repository("../README.md"), "README.md");
        assert_eq!(in_repository("runbooks/no-workers.md"), "docs/runbooks/no-workers.md");
        assert_eq!(in_book("README.md"), "index.md");
        assert_eq!(in_book("samples/README.md"), "samples/index.md");
        assert_eq!(in_book("docs/runs.md"), "runs.md");
        assert_eq!(in_book("docs/NOT-README.md"), "NOT-README.md");
    }

    #[test]
    fn a_relative_link_is_the_inverse_of_its_resolution() {
        for (from, to, link) in [
            ("index.md", "runs.md", "runs.md"),
            ("runbooks/a.md", "runs.md", "../runs.md"),
            ("runbooks/a.md", "runbooks/b.md", "b.md"),
            ("a/b/c.md", "a/d/e.md", "../d/e.md"),
        ] {
            assert_eq!(relative(from, to), link);
            assert_eq!(resolved(from, link), to);
        }
    }
}
