//! Check of the built book, as a browser sees it: each link and anchor has a target, the sidebar
//! leads to every page, search finds every page, and no page needs the network.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use html5ever::tendril::TendrilSink;
use html5ever::{ParseOpts, parse_document};
use markup5ever_rcdom::{Handle, NodeData, RcDom};

use crate::page::resolved;

/// The sidebar.
const SIDEBAR: &str = "toc.html";
/// Maximum number of clicks from any page to any other one.
const MAX_CLICKS: usize = 3;

/// A page: what it refers to, and what others can refer to.
#[derive(Default)]
struct Page {
    ids: BTreeSet<String>,
    /// Links that a reader can follow, each with the number of lists around it.
    links: Vec<(String, usize)>,
    /// Scripts, styles and images.
    resources: Vec<String>,
}

/// Checks the book in a folder.
///
/// # Errors
/// Returns an error that lists the defects.
pub(crate) fn check(folder: &Path) -> Result<()> {
    let mut files = BTreeSet::new();
    collect(folder, folder, &mut files)?;
    let mut pages = BTreeMap::new();
    for file in files.iter().filter(|file| file.ends_with(".html")) {
        let text = fs::read(folder.join(file)).with_context(|| file.clone())?;
        pages.insert(file.clone(), read(&text));
    }
    let search = search_index(folder, &files)?;
    let defects = defects(&pages, &files, &search);
    ensure!(defects.is_empty(), "the book has defects:\n  {}", defects.join("\n  "));
    let links: usize = pages.values().map(|page| page.links.len()).sum();
    println!("{}: {} pages, {links} links", folder.display(), pages.len() - 1);
    Ok(())
}

fn collect(root: &Path, folder: &Path, files: &mut BTreeSet<String>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else {
            files.insert(path.strip_prefix(root)?.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Returns the text of the search index, which contains the addresses of all pages.
fn search_index(folder: &Path, files: &BTreeSet<String>) -> Result<String> {
    let index = files.iter().find(|file| file.starts_with("searchindex") && file.ends_with(".js"));
    let index = index.context("the book has no search index")?;
    Ok(fs::read_to_string(folder.join(index))?)
}

fn defects(pages: &BTreeMap<String, Page>, files: &BTreeSet<String>, search: &str) -> Vec<String> {
    let mut defects = Vec::new();
    let mut clicks = BTreeMap::new();
    for (file, page) in pages {
        for (link, depth) in page.links.iter().filter(|(link, _)| !external(link)) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { file.clone() } else { resolved(file, path) };
            let has_anchor = |page: &Page| anchor.is_empty() || page.ids.contains(anchor);
            if !files.contains(&target) {
                defects.push(format!("{file} links to {link}, which does not exist"));
            } else if !pages.get(&target).is_none_or(has_anchor) {
                defects.push(format!("{file} links to {link}: {target} has no such anchor"));
            }
            if file == SIDEBAR {
                let known = clicks.entry(target).or_insert(*depth);
                *known = (*known).min(*depth);
            }
        }
        for resource in &page.resources {
            if external(resource) && !resource.starts_with("data:") {
                defects.push(format!("{file} loads {resource} from the network"));
            } else if !external(resource) && !files.contains(&resolved(file, resource)) {
                defects.push(format!("{file} loads {resource}, which does not exist"));
            }
        }
    }
    for file in pages.keys().filter(|file| *file != SIDEBAR) {
        match clicks.get(file) {
            None => defects.push(format!("the sidebar does not lead to {file}")),
            Some(clicks) if *clicks > MAX_CLICKS => {
                defects.push(format!("{file} is {clicks} clicks away"));
            }
            Some(_) => {}
        }
        if !search.contains(&format!("{file}#")) {
            defects.push(format!("search does not find {file}"));
        }
    }
    defects
}

/// Returns whether the address has a scheme.
fn external(address: &str) -> bool {
    address.split(['/', '#']).next().is_some_and(|start| start.contains(':'))
        || address.starts_with("//")
}

fn read(text: &[u8]) -> Page {
    let document = parse_document(RcDom::default(), ParseOpts::default()).from_utf8().one(text);
    let mut page = Page::default();
    walk(&document.document, 0, &mut page);
    page
}

fn walk(node: &Handle, depth: usize, page: &mut Page) {
    let mut below = depth;
    if let NodeData::Element { name, attrs, .. } = &node.data {
        let tag = &*name.local;
        for attribute in attrs.borrow().iter() {
            let value = attribute.value.to_string();
            match (tag, &*attribute.name.local) {
                (_, "id") => drop(page.ids.insert(value)),
                ("a", "href") => page.links.push((value, depth)),
                (_, "src") | ("link", "href") => page.resources.push(value),
                _ => {}
            }
        }
        below += usize::from(matches!(tag, "ol" | "ul"));
    }
    for child in node.children.borrow().iter() {
        walk(child, below, page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEARCH: &str = r#"["index.html#a","b.html#b"]"#;

    fn found(sidebar: &str, index: &str) -> Vec<String> {
        let texts = [(SIDEBAR, sidebar), ("index.html", index), ("b.html", "<h1 id=b>b</h1>")];
        let pages: BTreeMap<_, _> =
            texts.map(|(file, text)| (file.to_owned(), read(text.as_bytes()))).into();
        defects(&pages, &pages.keys().cloned().collect(), SEARCH)
    }

    #[test]
    fn a_book_without_defects_passes_and_each_defect_is_found() {
        let sidebar = "<ol><li><a href=index.html>i</a><li><a href=b.html>b</a></ol>";
        let index =
            "<a href=b.html#b>b</a> <a href=https://example.com/>e</a> <a href=#c id=c>c</a>";
        assert_eq!(found(sidebar, index), [""; 0]);
        let deep = format!("{}{}", "<ol><li>".repeat(3), sidebar);
        for (sidebar, index, defect) in [
            (sidebar, "<a href=x.html>x</a>", "x.html, which does not exist"),
            (sidebar, "<a href=b.html#x>x</a>", "b.html has no such anchor"),
            (sidebar, "<a href=#x>x</a>", "index.html has no such anchor"),
            (sidebar, "<script src=https://example.com/x.js></script>", "from the network"),
            (sidebar, "<img src=x.png>", "x.png, which does not exist"),
            ("<ol><li><a href=index.html>i</a></ol>", "", "does not lead to b.html"),
            (&deep, "", "4 clicks away"),
        ] {
            let found = found(sidebar, index);
            assert!(found.iter().any(|it| it.contains(defect)), "{defect}: {found:?}");
        }
    }
}
