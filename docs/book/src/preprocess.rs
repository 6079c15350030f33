//! Preprocessor of mdBook: moves each chapter to its place in the book, and rewrites its links.
//!
//! `docs/SUMMARY.md` may name pages outside docs/, such as `../ARCHITECTURE.md`. mdBook reads these
//! pages, and this preprocessor gives them a path inside the book.

use std::collections::BTreeMap;
use std::io;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::links::Links;
use crate::page::{in_book, in_repository};

/// Reads the context and the book from standard input, and writes the book to standard output.
pub(crate) fn run() -> Result<()> {
    let input: [Value; 2] = serde_json::from_reader(io::stdin().lock())
        .context("expected the context and the book, as mdBook passes them to a preprocessor")?;
    let [context, mut book] = input;
    let address = context["config"]["preprocessor"]["repository"]["address"].as_str();
    let mut chapters = BTreeMap::new();
    each_chapter(&mut book["items"], &mut |chapter| {
        if let Some(path) = chapter["source_path"].as_str() {
            let file = in_repository(path);
            chapters.insert(file.clone(), in_book(&file));
        }
        Ok(())
    })?;
    let links = Links { chapters: &chapters, address: address.unwrap_or_default() };
    each_chapter(&mut book["items"], &mut |chapter| {
        let Some(path) = chapter["source_path"].as_str() else { return Ok(()) };
        let file = in_repository(path);
        let content = chapter["content"].as_str().unwrap_or_default();
        chapter["content"] = links.rewritten(&file, content)?.into();
        chapter["path"] = chapters[&file].clone().into();
        Ok(())
    })?;
    serde_json::to_writer(io::stdout().lock(), &book)?;
    Ok(())
}

fn each_chapter(
    items: &mut Value,
    action: &mut impl FnMut(&mut Value) -> Result<()>,
) -> Result<()> {
    for item in items.as_array_mut().into_iter().flatten() {
        if let Some(chapter) = item.get_mut("Chapter") {
            action(chapter)?;
            each_chapter(&mut chapter["sub_items"], action)?;
        }
    }
    Ok(())
}
