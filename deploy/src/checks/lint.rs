//! Runs linters on the scripts and YAML files of the whole repository.

use std::path::PathBuf;

use anyhow::Result;

use crate::documents::{INSTALL, files, folder};
use crate::{Check, Tools, root};

const SUBJECT: &str = "lint";

pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let all = files(root());
    let scripts: Vec<PathBuf> = all.iter().filter(|path| script(path)).cloned().collect();
    let yaml = all.into_iter().filter(|path| {
        let ending = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
        // Templates are YAML only after rendering.
        ending && !path.starts_with(folder().join("helm/pgmill/templates"))
    });
    let mut yamllint = vec!["--strict".into(), "-c".into(), folder().join("check/yamllint.yaml")];
    let count = yamllint.len();
    yamllint.extend(yaml);
    let files = yamllint.len() - count;
    Ok(vec![
        lint(tools, "shellcheck", "every script of the repository", (&scripts, scripts.len()))?,
        lint(tools, "yamllint", "every YAML file", (&yamllint, files))?,
    ])
}

/// Returns whether the first line names a shell.
fn script(path: &PathBuf) -> bool {
    let start = std::fs::read(path).unwrap_or_default();
    let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.starts_with(b"#!") && (line.ends_with(b"sh") || line.ends_with(b"bash"))
}

fn lint(tools: &Tools, name: &str, what: &str, given: (&[PathBuf], usize)) -> Result<Check> {
    let (arguments, files) = given;
    let tool = tools.version(name);
    let Some(output) = tools.run(tools.command(name).args(arguments), "")? else {
        return Ok(Check::skipped(SUBJECT, what, &tool, INSTALL));
    };
    if output.success {
        return Ok(Check::passed(SUBJECT, what, &tool, format!("{files} files")));
    }
    let output = output.combined().replace(&format!("{}/", root().display()), "");
    Ok(Check::found(SUBJECT, what, &tool, &[output]))
}
