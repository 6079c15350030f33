//! Parses the dashboards of `deploy/grafana`: the panels with their titles and expressions, as far
//! as this program and the tests need them.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::files;

/// One dashboard file.
#[derive(Debug)]
pub struct Dashboard {
    /// Path from the root of the repository.
    pub file: String,
    /// Id used by links and alerts.
    pub uid: String,
    /// Title of the dashboard.
    pub title: String,
    /// Panels that show data.
    pub panels: Vec<Panel>,
    /// The whole document.
    pub json: Value,
}

/// One panel.
#[derive(Debug)]
pub struct Panel {
    /// Id, unique within the dashboard.
    pub id: i64,
    /// Title of the panel.
    pub title: String,
    /// Description, with links to the documentation.
    pub description: String,
    /// Grafana's name of a unit, such as `s`.
    pub unit: String,
    /// Expressions of the panel.
    pub targets: Vec<Target>,
}

/// One expression of a panel.
#[derive(Debug)]
pub struct Target {
    /// PromQL with Grafana's variables.
    pub expr: String,
}

impl Target {
    /// Returns the query without variables: for every fleet and queue, with rates over this
    /// duration, such as `5m`.
    #[must_use]
    pub fn query(&self, over: &str) -> String {
        let query = self.expr.replace("$__rate_interval", over);
        query.replace("\"$fleet\"", "\".*\"").replace("\"$queue\"", "\".*\"")
    }
}

/// Returns every dashboard, ordered by file.
///
/// # Errors
/// Returns an error if a file cannot be read or is not JSON.
pub fn dashboards() -> Result<Vec<Dashboard>> {
    let read = |(file, text): (String, String)| {
        let json: Value =
            serde_json::from_str(&text).with_context(|| format!("{file} is not valid JSON"))?;
        let all = json["panels"].as_array().cloned().unwrap_or_default();
        Ok(Dashboard {
            uid: text_of(&json["uid"]),
            title: text_of(&json["title"]),
            panels: all.iter().filter(|panel| panel["type"] != "row").map(panel).collect(),
            file,
            json,
        })
    };
    files("deploy/grafana/dashboards", ".json")?.into_iter().map(read).collect()
}

fn panel(json: &Value) -> Panel {
    let target = |json: &Value| Target { expr: text_of(&json["expr"]) };
    Panel {
        id: json["id"].as_i64().unwrap_or_default(),
        title: text_of(&json["title"]),
        description: text_of(&json["description"]),
        unit: text_of(&json["fieldConfig"]["defaults"]["unit"]),
        targets: json["targets"].as_array().into_iter().flatten().map(target).collect(),
    }
}

fn text_of(json: &Value) -> String {
    json.as_str().unwrap_or_default().to_owned()
}
