//! Checks deploy/kubernetes: each overlay as rendered by `kubectl kustomize`.

use anyhow::Result;

use super::manifests;
use crate::documents::{self, Documents, folder};
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
            Rendered::NoTool => checks.push(no_tool(SUBJECT, &what)),
        }
    }
    Ok(checks)
}

/// Result of rendering an overlay.
pub(crate) enum Rendered {
    Objects(Documents),
    Refused(String),
    NoTool,
}

/// Reports that kubectl is missing.
pub(crate) fn no_tool(subject: &'static str, what: &str) -> Check {
    Check::skipped(subject, what, "kubectl", "install kubectl, newer than Debian's package")
}

/// Renders the objects of a kustomization.
///
/// # Errors
/// Returns an error if kubectl does not start.
pub(crate) fn render(tools: &Tools, overlay: &str) -> Result<Rendered> {
    let mut command = tools.command("kubectl");
    let Some(output) = tools.run(command.arg("kustomize").arg(folder().join(overlay)), "")? else {
        return Ok(Rendered::NoTool);
    };
    if !output.success || !output.err.trim().is_empty() {
        return Ok(Rendered::Refused(output.err.trim().to_owned()));
    }
    Ok(Rendered::Objects(documents::parse(overlay, &output.out)?))
}
