//! deploy/container and deploy/compose, as files; what the image holds is `image`'s part.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::Value;

use super::{flags, objects};
use crate::documents::{self, INSTALL, at, folder, list, text};
use crate::scratch::Scratch;
use crate::{Check, Tools};

const SUBJECT: &str = "containers";
const DOCKERFILE: &str = "container/Dockerfile";
const COMPOSE: &str = "compose/compose.yaml";

pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let mut checks = vec![hadolint(tools)?, schema(tools)?, images()?];
    match documents::open(tools, COMPOSE)? {
        Some(compose) => checks.push(compose_fits(tools, &compose.objects[0])?),
        None => {
            checks.push(Check::skipped(SUBJECT, "compose.yaml fits together", "PyYAML", INSTALL));
        }
    }
    Ok(checks)
}

fn hadolint(tools: &Tools) -> Result<Check> {
    let tool = tools.version("hadolint");
    let mut command = tools.command("hadolint");
    let Some(said) = tools.run(command.arg("--no-color").arg(folder().join(DOCKERFILE)), "")?
    else {
        return Ok(Check::skipped(SUBJECT, "Dockerfile", &tool, INSTALL));
    };
    let mistakes: Vec<String> = said.all().lines().map(str::to_owned).collect();
    Ok(Check::found(SUBJECT, "Dockerfile", &tool, &mistakes))
}

fn schema(tools: &Tools) -> Result<Check> {
    let (what, tool) =
        ("compose.yaml by the Compose specification", tools.version("check-jsonschema"));
    let mut command = tools.command("check-jsonschema");
    command.args(["--builtin-schema", "vendor.compose-spec"]).arg(folder().join(COMPOSE));
    let Some(said) = tools.run(&mut command, "")? else {
        return Ok(Check::skipped(SUBJECT, what, &tool, INSTALL));
    };
    let mistakes = if said.success { Vec::new() } else { vec![said.all()] };
    Ok(Check::found(SUBJECT, what, &tool, &mistakes))
}

/// Images of the Dockerfile have versions, and the scripts that it runs are there.
fn images() -> Result<Check> {
    let dockerfile = std::fs::read_to_string(folder().join(DOCKERFILE))?;
    let mut mistakes = Vec::new();
    for line in dockerfile.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("FROM"), Some(image)) if image != "scratch" => {
                mistakes.extend(objects::image(image));
            }
            (Some("RUN"), Some(script)) if !crate::root().join(script).is_file() => {
                mistakes.push(format!(
                    "no script {script}: what RUN does stands in one, to be tried here"
                ));
            }
            _ => {}
        }
    }
    Ok(Check::found(SUBJECT, "Dockerfile: images have versions, RUN is a script", "own", &mistakes))
}

fn compose_fits(tools: &Tools, compose: &Value) -> Result<Check> {
    let mut mistakes = Vec::new();
    let mut lines = Vec::new();
    let services = at(compose, "services").as_object().into_iter().flatten();
    let secrets = secrets(compose, &mut mistakes)?;
    for (name, service) in services {
        let mut say = |what: String| mistakes.push(format!("{name}: {what}"));
        if let Some(mistake) = objects::image(text(service, "image")) {
            say(mistake);
        }
        for volume in list(service, "volumes").iter().filter_map(Value::as_str) {
            let source = volume.split(':').next().unwrap_or_default();
            let named = at(compose, "volumes").get(source).is_some();
            if source.starts_with('.') && !folder().join("compose").join(source).exists() {
                say(format!("{source} is not there to be mounted"));
            } else if !source.starts_with('.') && !named {
                say(format!("no volume {source}"));
            }
        }
        for secret in list(service, "secrets").iter().filter_map(Value::as_str) {
            if !secrets.contains(secret) {
                say(format!("no secret {secret}"));
            }
        }
        for (variable, value) in at(service, "environment").as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            if let Some(secret) = value.strip_prefix("/run/secrets/") {
                if !list(service, "secrets").iter().any(|it| it == secret) {
                    say(format!("{variable} names a secret that it is not given"));
                }
            } else if variable.contains("PASSWORD") || value.contains("password=") {
                say(format!("{variable} holds a secret"));
            }
        }
        let grace = objects::seconds(text(service, "environment.PGMILL_GRACE"));
        let patience = objects::seconds(text(service, "stop_grace_period")).unwrap_or(10.0);
        if grace.is_some_and(|grace| patience < grace + 60.0) {
            say(format!("waits {patience} s for a worker that takes {grace:?} s to stop"));
        }
        let command = list(service, "command").iter().filter_map(Value::as_str);
        lines.push(command.collect::<Vec<_>>().join(" "));
    }
    mistakes.extend(flags::mistakes(tools, &lines)?);
    let what = "compose.yaml: mounts, secrets, volumes, images, flags";
    let mut check = Check::found(SUBJECT, what, "own", &mistakes);
    if mistakes.is_empty() {
        check.detail = format!("{} services, {} secrets", lines.len(), secrets.len());
    }
    Ok(check)
}

/// The secrets, each of which `setup` makes.
fn secrets(compose: &Value, mistakes: &mut Vec<String>) -> Result<BTreeSet<String>> {
    let scratch = Scratch::new("secrets")?;
    let made = scratch.path().join("secrets");
    let setup = std::process::Command::new(folder().join("compose/setup")).arg(&made).output()?;
    if !setup.status.success() {
        mistakes.push(format!("compose/setup: {}", String::from_utf8_lossy(&setup.stderr)));
    }
    let mut names = BTreeSet::new();
    for (name, secret) in at(compose, "secrets").as_object().into_iter().flatten() {
        let file = text(secret, "file").strip_prefix("./secrets/").unwrap_or_default();
        if std::fs::metadata(made.join(file)).map_or(0, |file| file.len()) == 0 {
            mistakes.push(format!("compose/setup makes no secrets/{file}"));
        }
        names.insert(name.clone());
    }
    Ok(names)
}
