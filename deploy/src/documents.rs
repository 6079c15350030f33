//! Parses YAML to JSON values like the tools that read these files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::Tools;
use crate::scratch::Scratch;

/// Hint for a missing tool.
pub(crate) const INSTALL: &str = "`make deploy-check` installs it if Python is available";

/// A text with its documents.
pub(crate) struct Documents {
    /// Origin, for messages.
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) objects: Vec<Value>,
}

/// Parses a text.
///
/// # Errors
/// Returns an error if the text is not YAML or contains a duplicate key, of which the last would
/// silently win.
pub(crate) fn parse(name: &str, text: &str) -> Result<Documents> {
    // Kubernetes reads YAML 1.1: `on` is a boolean, and 0644 is octal.
    let options = serde_saphyr::options! { strict_booleans: false, legacy_octal_numbers: true };
    let objects =
        serde_saphyr::from_multiple_with_options(text, options).with_context(|| name.to_owned())?;
    Ok(Documents { name: name.to_owned(), text: text.to_owned(), objects })
}

/// Reads a file below `deploy/`.
///
/// # Errors
/// Returns the errors of [`parse`], or an error if the file cannot be read.
pub(crate) fn open(path: &str) -> Result<Documents> {
    let full = folder().join(path);
    let text = std::fs::read_to_string(&full).with_context(|| full.display().to_string())?;
    parse(path, &text)
}

/// Returns the path of `deploy/`.
pub(crate) fn folder() -> PathBuf {
    crate::root().join("deploy")
}

/// Returns every file below a folder of the repository, sorted, without build output and git
/// metadata.
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

/// Returns the path relative to the repository root.
pub(crate) fn short(path: &Path) -> String {
    path.strip_prefix(crate::root()).unwrap_or(path).display().to_string()
}

/// Validates the objects with a JSON Schema in `check/schemas/`; `None` without the tool.
///
/// # Errors
/// Returns an error if the tool does not start, or its input cannot be written.
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

/// Returns the value at a path of keys, or null.
pub(crate) fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    static NULL: Value = Value::Null;
    value.pointer(&format!("/{}", path.replace('.', "/"))).unwrap_or(&NULL)
}

/// Returns the text at a path, or an empty one.
pub(crate) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// Returns the list at a path, or an empty one.
pub(crate) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_is_read_as_kubernetes_reads_it() {
        let text = "a: on\nb: 0644\nc: '8080'\nd: 1.5\n---\n---\ne: [x, null]\n";
        let objects = parse("it", text).unwrap().objects;
        let first = json!({ "a": true, "b": 0o644, "c": "8080", "d": 1.5 });
        assert_eq!(objects, [first, json!({ "e": ["x", null] })]);
    }

    #[test]
    fn duplicate_keys_and_broken_yaml_are_refused() {
        for text in ["a: 1\na: 2\n", "a: {b: 1, b: 2}\n", "a: [1\n"] {
            let error = format!("{:#}", parse("it", text).err().expect(text));
            assert!(error.starts_with("it: "), "{error}");
        }
    }
}
