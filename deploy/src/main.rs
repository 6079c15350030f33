//! deploy-pages FOLDER: writes the man pages and completions of the installed programs into folders
//! named man, bash, zsh and fish, whose contents it replaces.

use std::path::PathBuf;

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).context("usage: deploy-pages FOLDER")?;
    let pages = deploy::man_pages::write(&PathBuf::from(folder))?;
    println!("wrote {pages} pages and completions");
    Ok(())
}
