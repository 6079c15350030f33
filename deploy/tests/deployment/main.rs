//! The files of deploy/ agree with each other, with the documentation and with the programs.
//!
//! - `alerts`: tests, texts and runbooks of the alerts
//! - `dashboards`: parts and links of the dashboards
//! - `metrics`: metrics and labels in rules and dashboards
//! - `programs`: command lines, variables and times

#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

mod alerts;
mod dashboards;
mod metrics;
mod programs;

use serde_json::Value;

/// Returns the text of a file of the repository.
fn read(path: &str) -> String {
    std::fs::read_to_string(deploy::root().join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns all items of this list in the YAML files of a folder.
fn items(folder: &str, list: &str) -> Vec<Value> {
    let files = deploy::files(folder, ".yml").unwrap().into_iter();
    let lists = files.map(|(file, text)| {
        let value: Value =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        value[list].as_array().unwrap_or_else(|| panic!("{file} has no {list}")).clone()
    });
    lists.flatten().collect()
}

/// Returns the alerts, or with `record` the recording rules.
fn rules(kind: &str) -> Vec<Value> {
    let groups = items("deploy/prometheus/rules", "groups");
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules.filter(|rule| rule[kind].is_string()).cloned().collect()
}
