//! Checks the systemd unit: systemd's own verification, and consistency with the worker.

use std::fs;

use anyhow::{Context, Result};

use crate::scratch::Scratch;
use crate::{Check, Tools, root};

const SUBJECT: &str = "systemd";
const UNIT: &str = "pgmill-worker@.service";

/// Maximum exposure level of the service, in tenths: 0 for none, 100 for full exposure.
const EXPOSURE: &str = "15";

/// Number of seconds that a worker may need after its shutdown timeout: up to 30 s to cancel
/// statements, and up to 5 s for the last heartbeat.
const AFTER_SHUTDOWN_TIMEOUT_S: u64 = 35;

pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let path = root().join("deploy/systemd").join(UNIT);
    let unit = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    // The packaged program is not installed on this machine, or is another version.
    let scratch = Scratch::new("systemd")?;
    let copy = scratch.path().join(UNIT);
    fs::write(&copy, unit.replace("ExecStart=/usr/bin/pgmill-worker", "ExecStart=/bin/true"))?;
    let mut checks = Vec::new();
    let tool = "systemd-analyze";
    let hint = "apt-get install systemd";
    // systemd-analyze reports unknown settings but still exits with 0.
    let verify = tools.run(tools.command(tool).args(["verify", "--man=no"]).arg(&copy), "")?;
    checks.push(match verify {
        Some(output) => Check::found(SUBJECT, "the unit", tool, &lines(&output.combined())),
        None => Check::skipped(SUBJECT, "the unit", tool, hint),
    });
    let threshold = format!("--threshold={EXPOSURE}");
    let mut security = tools.command(tool);
    let security = security.args(["security", "--offline=true", "--no-pager", &threshold]);
    let what = "exposure of the unit";
    checks.push(match tools.run(security.arg(&copy), "")? {
        None => Check::skipped(SUBJECT, what, tool, hint),
        Some(output) => {
            let level = output.out.lines().find(|line| line.contains("exposure level"));
            let level = level.unwrap_or(output.err.trim()).trim_start_matches("→ ").to_owned();
            match output.success {
                true => Check::passed(SUBJECT, what, tool, level),
                false => Check::found(SUBJECT, what, tool, &[level]),
            }
        }
    });
    checks.push(Check::found(SUBJECT, "the worker's flags and times", "own", &agrees(&unit)));
    Ok(checks)
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Reports variables that the worker does not read, and timeouts shorter than the worker needs.
fn agrees(unit: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let worker = pgmill_worker::command();
    let read: Vec<String> = worker
        .get_arguments()
        .filter_map(|argument| argument.get_env())
        .map(|variable| variable.to_string_lossy().into_owned())
        .collect();
    let set = unit.lines().filter_map(|line| line.strip_prefix("Environment="));
    for variable in set.filter_map(|setting| setting.split('=').next()) {
        if !read.iter().any(|name| name == variable) {
            errors.push(format!("the worker does not read {variable}"));
        }
    }
    let has_line = |line: &str| unit.lines().any(|it| it == line);
    for line in ["Type=notify", "KillMode=mixed", "RestartPreventExitStatus=2 5"] {
        if !has_line(line) {
            errors.push(format!("{line} is missing"));
        }
    }
    let shutdown_timeout = 30;
    match value(unit, "TimeoutStopSec").and_then(|text| text.strip_suffix('s')?.parse().ok()) {
        Some(seconds) if shutdown_timeout + AFTER_SHUTDOWN_TIMEOUT_S < seconds => {}
        other => errors.push(format!(
            "TimeoutStopSec is {other:?}, but must be more than {} s",
            shutdown_timeout + AFTER_SHUTDOWN_TIMEOUT_S
        )),
    }
    errors
}

fn value<'a>(unit: &'a str, key: &str) -> Option<&'a str> {
    unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_disagrees_with_the_worker_is_found() {
        let good = "Type=notify\nKillMode=mixed\nRestartPreventExitStatus=2 5\nTimeoutStopSec=90s\n\
                    Environment=PGMILL_READERS=4\n";
        assert_eq!(agrees(good), [""; 0]);
        for (from, to) in [
            ("notify", "simple"),
            ("mixed", "process"),
            ("2 5", "2"),
            ("90s", "60s"),
            ("READERS", "REDERS"),
        ] {
            assert_eq!(agrees(&good.replace(from, to)).len(), 1, "{from} {to}");
        }
    }
}
