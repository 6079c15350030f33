//! Checks the configurations of the failover managers: the files parse, and contain the settings
//! that docs/database.md explains. `make ha-check` runs Patroni with its file.

use anyhow::Result;
use serde_json::Value;

use crate::{Check, Tools, root};

const SUBJECT: &str = "failover";

/// Reads YAML, and rejects duplicate keys.
const READ: &str = "
import json, sys, yaml
class Once(yaml.SafeLoader):
    pass
def mapping(loader, node):
    keys = [loader.construct_object(key) for key, _ in node.value]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise SystemExit('duplicate key: %s' % twice[0])
    return dict(loader.construct_pairs(node, deep=True))
Once.add_constructor('tag:yaml.org,2002:map', mapping)
print(json.dumps(yaml.load(sys.stdin, Once)))
";

/// File, path of the server's settings in the file, and other required settings.
type Manager = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const MANAGERS: [Manager; 2] = [
    (
        "cloudnativepg/cluster.yaml",
        "/spec/postgresql/parameters",
        &[
            ("/apiVersion", "\"postgresql.cnpg.io/v1\""),
            ("/kind", "\"Cluster\""),
            ("/spec/instances", "3"),
            ("/spec/postgresql/synchronous/number", "1"),
        ],
    ),
    (
        "patroni/patroni.yml",
        "/postgresql/parameters",
        &[
            ("/synchronous_mode", "true"),
            ("/synchronous_mode_strict", "true"),
            ("/postgresql/use_pg_rewind", "true"),
            ("/postgresql/parameters/wal_retrieve_retry_interval", "\"500ms\""),
        ],
    ),
];

/// Server settings that both managers must have, according to docs/database.md.
const SETTINGS: [(&str, &str); 5] = [
    ("synchronous_commit", "on"),
    ("client_connection_check_interval", "1s"),
    ("idle_in_transaction_session_timeout", "10min"),
    ("autovacuum_naptime", "15s"),
    ("max_wal_size", "4GB"),
];

pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    MANAGERS.iter().map(|manager| check(tools, manager)).collect()
}

fn check(tools: &Tools, (file, settings, fields): &Manager) -> Result<Check> {
    let what = format!("{file}: parses, no duplicate key, settings match docs/database.md");
    let text = std::fs::read_to_string(root().join("deploy").join(file))?;
    let output = tools.run(tools.command("python3").args(["-c", READ]), &text)?;
    let Some(output) = output.filter(|output| !output.err.contains("No module named")) else {
        return Ok(Check::skipped(SUBJECT, &what, "PyYAML", "pip install pyyaml"));
    };
    let Ok(value) = serde_json::from_str::<Value>(&output.out) else {
        return Ok(Check::found(SUBJECT, &what, "PyYAML", &[output.combined()]));
    };
    let settings = SETTINGS
        .iter()
        .map(|(name, expected)| (format!("{settings}/{name}"), format!("\"{expected}\"")));
    let fields = fields.iter().map(|(at, expected)| ((*at).to_owned(), (*expected).to_owned()));
    let wrong = settings.chain(fields).filter_map(|(at, expected)| {
        let found = value.pointer(&at).map_or_else(|| "nothing".to_owned(), Value::to_string);
        (found != expected).then(|| format!("{at} is {found}, expected {expected}"))
    });
    Ok(Check::found(SUBJECT, &what, "PyYAML", &wrong.collect::<Vec<_>>()))
}
