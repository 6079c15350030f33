//! The dashboards of `deploy/grafana`, as far as this program and the tests ask: panels with what they
//! show and the expressions behind it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::rules::files;

/// One file.
#[derive(Debug)]
pub struct Dashboard {
    /// Its path from the root of the repository.
    pub file: String,
    /// By which links and alerts find it.
    pub uid: String,
    /// What stands above it.
    pub title: String,
    /// Those that show something.
    pub panels: Vec<Panel>,
    /// The others: what stands above a group of panels, and where.
    pub headings: Vec<(String, Place)>,
    /// The whole.
    pub json: Value,
}

/// Where something stands, in Grafana's grid of 24 columns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// Columns from the left.
    pub x: f64,
    /// Rows from the top.
    pub y: f64,
    /// Columns.
    pub width: f64,
    /// Rows.
    pub height: f64,
}

/// One panel.
#[derive(Debug)]
pub struct Panel {
    /// Unique in its dashboard.
    pub id: i64,
    /// What stands above it.
    pub title: String,
    /// What it shows, and where to read on.
    pub description: String,
    /// As in `timeseries`.
    pub kind: String,
    /// Grafana's name of a unit, as in `s`.
    pub unit: String,
    /// Where it stands.
    pub place: Place,
    /// What is drawn.
    pub targets: Vec<Target>,
}

/// One expression of a panel.
#[derive(Debug)]
pub struct Target {
    /// In PromQL, with Grafana's variables.
    pub expr: String,
    /// How its series are named, as in `{{queue}}`.
    pub legend: String,
}

impl Target {
    /// What a series with these labels is called.
    #[must_use]
    pub fn name(&self, labels: &BTreeMap<String, String>) -> String {
        let mut name = self.legend.replace("__auto", "");
        for (label, value) in labels {
            name = name.replace(&format!("{{{{{label}}}}}"), value);
        }
        name
    }

    /// Without variables: every fleet and queue, and rates over this duration, as in `5m`.
    #[must_use]
    pub fn query(&self, over: &str) -> String {
        let query = self.expr.replace("$__rate_interval", over);
        query.replace("\"$fleet\"", "\".*\"").replace("\"$queue\"", "\".*\"")
    }
}

/// Every dashboard, by file.
///
/// # Errors
/// A file that cannot be read or is no JSON.
pub fn dashboards() -> Result<Vec<Dashboard>> {
    let read = |(file, text): (String, String)| {
        let json: Value =
            serde_json::from_str(&text).with_context(|| format!("{file} is no JSON"))?;
        let all = json["panels"].as_array().cloned().unwrap_or_default();
        let (rows, panels): (Vec<&Value>, Vec<&Value>) =
            all.iter().partition(|panel| panel["type"] == "row");
        Ok(Dashboard {
            uid: text_of(&json["uid"]),
            title: text_of(&json["title"]),
            panels: panels.into_iter().map(panel).collect(),
            headings: rows.iter().map(|row| (text_of(&row["title"]), place(row))).collect(),
            file,
            json,
        })
    };
    files("deploy/grafana/dashboards", ".json")?.into_iter().map(read).collect()
}

fn panel(json: &Value) -> Panel {
    let target = |json: &Value| Target {
        expr: text_of(&json["expr"]),
        legend: text_of(&json["legendFormat"]),
    };
    Panel {
        id: json["id"].as_i64().unwrap_or_default(),
        title: text_of(&json["title"]),
        description: text_of(&json["description"]),
        kind: text_of(&json["type"]),
        unit: text_of(&json["fieldConfig"]["defaults"]["unit"]),
        place: place(json),
        targets: json["targets"].as_array().into_iter().flatten().map(target).collect(),
    }
}

fn place(json: &Value) -> Place {
    let number = |name: &str| json["gridPos"][name].as_f64().unwrap_or_default();
    Place { x: number("x"), y: number("y"), width: number("w"), height: number("h") }
}

fn text_of(json: &Value) -> String {
    json.as_str().unwrap_or_default().to_owned()
}
