//! The chapters of the book.

use std::collections::BTreeSet;
use std::fs;

use crate::project::tidy::{files, root};

#[test]
fn every_page_is_a_chapter_of_the_book() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let chapters: Vec<&str> =
        summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    let unique: BTreeSet<&str> = chapters.iter().copied().collect();
    assert_eq!(unique.len(), chapters.len(), "a page is in docs/SUMMARY.md twice");
    for (path, _) in files(&["docs"], &[".md"]) {
        let page = path.strip_prefix("docs/").unwrap();
        assert!(page == "SUMMARY.md" || unique.contains(page), "docs/SUMMARY.md has no {page}");
    }
}
