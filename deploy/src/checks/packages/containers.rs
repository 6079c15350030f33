//! Checks the files of deploy/container and deploy/compose; `image` checks the content of the
//! image.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::Value;

use crate::checks::flags;
use crate::checks::kubernetes::objects;
use crate::documents::{self, INSTALL, at, folder, list, text};
use crate::scratch::Scratch;
use crate::{Check, Tools};

const SUBJECT: &str = "containers";
const DOCKERFILE: &str = "container/Dockerfile";
const COMPOSE: &str = "compose/compose.yaml";

pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let compose = documents::open(COMPOSE)?;
    let fits = compose_fits(tools, &compose.objects[0])?;
    Ok(vec![hadolint(tools)?, schema(tools)?, images()?, fits])
}

fn hadolint(tools: &Tools) -> Result<Check> {
    let tool = tools.version("hadolint");
    let mut command = tools.command("hadolint");
    let Some(output) = tools.run(command.arg("--no-color").arg(folder().join(DOCKERFILE)), "")?
    else {
        return Ok(Check::skipped(SUBJECT, "Dockerfile", &tool, INSTALL));
    };
    let errors: Vec<String> = output.combined().lines().map(str::to_owned).collect();
    Ok(Check::found(SUBJECT, "Dockerfile", &tool, &errors))
}

fn schema(tools: &Tools) -> Result<Check> {
    let (what, tool) =
        ("compose.yaml by the Compose specification", tools.version("check-jsonschema"));
    let mut command = tools.command("check-jsonschema");
    command.args(["--builtin-schema", "vendor.compose-spec"]).arg(folder().join(COMPOSE));
    let Some(output) = tools.run(&mut command, "")? else {
        return Ok(Check::skipped(SUBJECT, what, &tool, INSTALL));
    };
    let errors = if output.success { Vec::new() } else { vec![output.combined()] };
    Ok(Check::found(SUBJECT, what, &tool, &errors))
}

/// Checks that the Dockerfile's images have versions and that its RUN scripts exist.
fn images() -> Result<Check> {
    let dockerfile = std::fs::read_to_string(folder().join(DOCKERFILE))?;
    let mut errors = Vec::new();
    for line in dockerfile.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("FROM"), Some(image)) if image != "scratch" => {
                errors.extend(objects::image(image));
            }
            (Some("RUN"), Some(script)) if !crate::root().join(script).is_file() => {
                errors.push(format!(
                    "script {script} is missing: RUN must call a script that this check can run"
                ));
            }
            _ => {}
        }
    }
    Ok(Check::found(SUBJECT, "Dockerfile: images have versions, RUN is a script", "own", &errors))
}

fn compose_fits(tools: &Tools, compose: &Value) -> Result<Check> {
    let mut errors = Vec::new();
    let mut lines = Vec::new();
    let services = at(compose, "services").as_object().into_iter().flatten();
    let secrets = secrets(compose, &mut errors)?;
    for (name, service) in services {
        let mut report = |what: String| errors.push(format!("{name}: {what}"));
        if let Some(error) = objects::image(text(service, "image")) {
            report(error);
        }
        for volume in list(service, "volumes").iter().filter_map(Value::as_str) {
            let source = volume.split(':').next().unwrap_or_default();
            let named = at(compose, "volumes").get(source).is_some();
            if source.starts_with('.') && !folder().join("compose").join(source).exists() {
                report(format!("mount source {source} does not exist"));
            } else if !source.starts_with('.') && !named {
                report(format!("volume {source} is not defined"));
            }
        }
        for secret in list(service, "secrets").iter().filter_map(Value::as_str) {
            if !secrets.contains(secret) {
                report(format!("secret {secret} is not defined"));
            }
        }
        for (variable, value) in at(service, "environment").as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            if let Some(secret) = value.strip_prefix("/run/secrets/") {
                if !list(service, "secrets").iter().any(|it| it == secret) {
                    report(format!("{variable} names a secret that the service does not mount"));
                }
            } else if variable.contains("PASSWORD") || value.contains("password=") {
                report(format!("{variable} contains a secret"));
            }
        }
        let shutdown_timeout =
            objects::seconds(text(service, "environment.PGMILL_SHUTDOWN_TIMEOUT"));
        let patience = objects::seconds(text(service, "stop_grace_period")).unwrap_or(10.0);
        if shutdown_timeout.is_some_and(|shutdown_timeout| patience < shutdown_timeout + 60.0) {
            report(format!(
                "waits {patience} s, but the worker takes {shutdown_timeout:?} s to stop"
            ));
        }
        let command = list(service, "command").iter().filter_map(Value::as_str);
        lines.push(command.collect::<Vec<_>>().join(" "));
    }
    errors.extend(flags::errors(tools, &lines)?);
    let what = "compose.yaml: mounts, secrets, volumes, images, flags";
    let mut check = Check::found(SUBJECT, what, "own", &errors);
    if errors.is_empty() {
        check.detail = format!("{} services, {} secrets", lines.len(), secrets.len());
    }
    Ok(check)
}

/// Returns the secrets; `setup` creates each of them.
fn secrets(compose: &Value, errors: &mut Vec<String>) -> Result<BTreeSet<String>> {
    let scratch = Scratch::new("secrets")?;
    let made = scratch.path().join("secrets");
    let setup = std::process::Command::new(folder().join("compose/setup")).arg(&made).output()?;
    if !setup.status.success() {
        errors.push(format!("compose/setup: {}", String::from_utf8_lossy(&setup.stderr)));
    }
    let mut names = BTreeSet::new();
    for (name, secret) in at(compose, "secrets").as_object().into_iter().flatten() {
        let file = text(secret, "file").strip_prefix("./secrets/").unwrap_or_default();
        if std::fs::metadata(made.join(file)).map_or(0, |file| file.len()) == 0 {
            errors.push(format!("compose/setup does not create secrets/{file}"));
        }
        names.insert(name.clone());
    }
    Ok(names)
}
