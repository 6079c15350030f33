//! Checks deploy/kubernetes: each overlay as rendered by `kubectl kustomize`.

use anyhow::Result;

use super::manifests;
use crate::documents::{self, Documents, INSTALL, folder};
use crate::{Check, Tools};

const SUBJECT: &str = "kubernetes";

/// Overlays meant to be applied.
const OVERLAYS: &[&str] = &["kubernetes/base", "kubernetes/development", "kubernetes/production"];

pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for overlay in OVERLAYS {
        let what = format!("{overlay}: kustomization");
        match render(tools, overlay)? {
            Rendered::Objects(found) => {
                let detail = format!("{} objects", found.objects.len());
                checks.push(Check::passed(SUBJECT, &what, "kubectl kustomize", detail));
                checks.extend(manifests::check(tools, SUBJECT, &found)?);
            }
            Rendered::Refused(why) => {
                checks.push(Check::found(SUBJECT, &what, "kubectl kustomize", &[why]));
            }
            Rendered::NoTool(check) => checks.push(check(SUBJECT, &what)),
        }
    }
    Ok(checks)
}

/// Result of rendering an overlay.
pub(crate) enum Rendered {
    Objects(Documents),
    Refused(String),
    /// The tool is missing; builds the row that reports it.
    NoTool(fn(&'static str, &str) -> Check),
}

/// Renders the objects of a kustomization.
///
/// # Errors
/// Returns an error if kubectl does not start.
pub(crate) fn render(tools: &Tools, overlay: &str) -> Result<Rendered> {
    let mut command = tools.command("kubectl");
    let Some(output) = tools.run(command.arg("kustomize").arg(folder().join(overlay)), "")? else {
        return Ok(Rendered::NoTool(|subject, what| {
            let hint = "install kubectl, newer than Debian's package";
            Check::skipped(subject, what, "kubectl", hint)
        }));
    };
    if !output.success || !output.err.trim().is_empty() {
        return Ok(Rendered::Refused(output.err.trim().to_owned()));
    }
    Ok(match documents::parse(tools, overlay, &output.out)? {
        Some(found) => Rendered::Objects(found),
        None => Rendered::NoTool(|subject, what| Check::skipped(subject, what, "PyYAML", INSTALL)),
    })
}
