//! YAML as JSON values, by way of Python: the tools that read these files read YAML 1.1 as Python does, and a
//! second reader that differs from them would check something else.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::Tools;
use crate::scratch::Scratch;

/// How to get what is missing.
pub(crate) const INSTALL: &str = "`make deploy-check` installs it, where Python is";

/// A text with its documents.
pub(crate) struct Documents {
    /// Where it is from, for people.
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) objects: Vec<Value>,
}

/// Reads a text; `None` without Python or its YAML.
///
/// # Errors
/// It is no YAML, or gives a key twice.
pub(crate) fn parse(tools: &Tools, name: &str, text: &str) -> Result<Option<Documents>> {
    let Some(output) = tools.python("documents.py", &[], text)? else { return Ok(None) };
    if !output.success {
        bail!("{name}: {}", output.err.trim());
    }
    let objects = serde_json::from_str(&output.out).with_context(|| format!("{name} as JSON"))?;
    Ok(Some(Documents { name: name.to_owned(), text: text.to_owned(), objects }))
}

/// Reads a file below `deploy/`.
///
/// # Errors
/// As [`parse`]; it cannot be read.
pub(crate) fn open(tools: &Tools, path: &str) -> Result<Option<Documents>> {
    let full = folder().join(path);
    let text = std::fs::read_to_string(&full).with_context(|| full.display().to_string())?;
    parse(tools, path, &text)
}

/// `deploy/` itself.
pub(crate) fn folder() -> PathBuf {
    crate::root().join("deploy")
}

/// Every file below a folder of the repository, sorted; nothing of builds and of git.
pub(crate) fn files(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![below.to_owned()];
    while let Some(path) = left.pop() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !path.is_dir() {
            found.push(path);
        } else if !["target", ".git", "secrets", "__pycache__"].contains(&&*name) {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path()));
        }
    }
    found.sort();
    found
}

/// The path as seen from the repository's root.
pub(crate) fn short(path: &Path) -> String {
    path.strip_prefix(crate::root()).unwrap_or(path).display().to_string()
}

/// What a JSON Schema in `check/schemas/` has against the objects; `None` without the tool.
///
/// # Errors
/// The tool does not start, or there is no room for its input.
pub(crate) fn validate(
    tools: &Tools,
    schema: &str,
    objects: &[&Value],
) -> Result<Option<Vec<String>>> {
    let scratch = Scratch::new("schemas")?;
    let mut command = tools.command("check-jsonschema");
    command.arg("--schemafile").arg(folder().join("check/schemas").join(schema));
    for (n, object) in objects.iter().enumerate() {
        let path = scratch.path().join(format!("{n}.json"));
        std::fs::write(&path, object.to_string())?;
        command.arg(path);
    }
    let Some(output) = tools.run(&mut command, "")? else { return Ok(None) };
    Ok(Some(if output.success { Vec::new() } else { vec![scratch.without(&output.combined())] }))
}

/// The value at a path of keys; null where there is none.
pub(crate) fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    static NULL: Value = Value::Null;
    value.pointer(&format!("/{}", path.replace('.', "/"))).unwrap_or(&NULL)
}

/// The text at a path, or nothing.
pub(crate) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// The list at a path, or an empty one.
pub(crate) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}
