//! A plan as EXPLAIN (ANALYZE, FORMAT JSON) tells it: its nodes in the order of the tree, what the whole
//! took, and what makes it another plan than the one before.

use serde::Serialize;
use serde_json::Value;

/// An estimate that is off by this factor stands out.
const MISESTIMATE_FACTOR: f64 = 10.0;

/// A node of the tree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanNode {
    /// 0 is the root.
    pub depth: usize,
    /// What it does, and to what.
    pub operation: String,
    /// It ran at least once.
    pub executed: bool,
    /// Rows of one loop, on average.
    pub rows: f64,
    /// Rows that the planner expected of it.
    pub expected_rows: f64,
    /// The two differ by a factor of ten or more.
    pub misestimated: bool,
    /// How often it ran.
    pub loops: f64,
    /// Its time in all loops without that of the nodes below it.
    pub self_seconds: f64,
    /// Blocks found in the server's memory, as all that follows with the nodes below it.
    pub blocks_hit: i64,
    /// Blocks that were read.
    pub blocks_read: i64,
    /// Blocks written to temporary files.
    pub temp_blocks_written: i64,
}

/// A trigger that the statement fired.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanTrigger {
    /// Its name.
    pub name: String,
    /// How long all calls took.
    pub seconds: f64,
    /// How often it was called.
    pub calls: i64,
}

/// What the whole took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanTotals {
    /// The planner.
    pub planning_seconds: Option<f64>,
    /// The statement.
    pub execution_seconds: Option<f64>,
    /// What it wrote ahead.
    pub wal_bytes: Option<i64>,
    /// The triggers it fired.
    pub triggers: Vec<PlanTrigger>,
    /// The plan was too long to be kept whole.
    pub truncated: bool,
}

/// The nodes, each before those below it.
#[must_use]
pub fn plan_nodes(plan: &Value) -> Vec<PlanNode> {
    let mut nodes = Vec::new();
    if plan["Plan"].is_object() {
        gather(&plan["Plan"], 0, &mut nodes);
    }
    nodes
}

/// What the whole took.
#[must_use]
pub fn plan_totals(plan: &Value) -> PlanTotals {
    let seconds = |value: &Value| value.as_f64().map(|milliseconds| milliseconds / 1000.0);
    let trigger = |it: &Value| PlanTrigger {
        name: it["Trigger Name"].as_str().unwrap_or_default().to_owned(),
        seconds: seconds(&it["Time"]).unwrap_or_default(),
        calls: it["Calls"].as_i64().unwrap_or_default(),
    };
    PlanTotals {
        planning_seconds: seconds(&plan["Planning Time"]),
        execution_seconds: seconds(&plan["Execution Time"]),
        wal_bytes: plan["Plan"]["WAL Bytes"].as_i64(),
        triggers: plan["Triggers"].as_array().into_iter().flatten().map(trigger).collect(),
        truncated: plan["Truncated"] == true,
    }
}

/// The same for plans that differ in numbers only: 16 hexadecimal digits.
#[must_use]
pub fn plan_shape(plan: &Value) -> String {
    format!("{:016x}", hash(&lines(plan)))
}

/// Lines of the tree that are gone (`-`), and that are new (`+`).
#[must_use]
pub fn plan_changes(before: &Value, now: &Value) -> Vec<(char, String)> {
    let (old, new) = (lines(before), lines(now));
    let of = |sign: char, lines: &[String], others: &[String]| -> Vec<(char, String)> {
        let own = lines.iter().filter(|line| !others.contains(line));
        own.map(|line| (sign, line.trim().to_owned())).collect()
    };
    [of('-', &old, &new), of('+', &new, &old)].concat()
}

fn gather(node: &Value, depth: usize, nodes: &mut Vec<PlanNode>) {
    let number = |key: &str| node[key].as_f64().unwrap_or_default();
    let blocks = |key: &str| node[key].as_i64().unwrap_or_default();
    let milliseconds = |node: &Value| {
        node["Actual Total Time"].as_f64().unwrap_or_default()
            * node["Actual Loops"].as_f64().unwrap_or_default()
    };
    let below: &[Value] = node["Plans"].as_array().map_or(&[], Vec::as_slice);
    let own = (milliseconds(node) - below.iter().map(milliseconds).sum::<f64>()).max(0.0);
    let (rows, expected_rows) = (number("Actual Rows"), number("Plan Rows"));
    let ran = number("Actual Loops") > 0.0;
    let off = rows.max(1.0).ln() - expected_rows.max(1.0).ln();
    nodes.push(PlanNode {
        depth,
        operation: describe_node(node),
        executed: ran,
        rows,
        expected_rows,
        misestimated: ran && off.abs() >= MISESTIMATE_FACTOR.ln(),
        loops: number("Actual Loops"),
        self_seconds: own / 1000.0,
        blocks_hit: blocks("Shared Hit Blocks"),
        blocks_read: blocks("Shared Read Blocks"),
        temp_blocks_written: blocks("Temp Written Blocks"),
    });
    for child in below {
        gather(child, depth + 1, nodes);
    }
}

/// What a node does, and to what: all that makes its shape.
fn describe_node(node: &Value) -> String {
    let text = |key: &str| node[key].as_str();
    let mut words = Vec::new();
    words.extend(text("Subplan Name").map(|name| format!("{name}:")));
    let kind = match text("Node Type") {
        Some("ModifyTable") => text("Operation"),
        kind => kind,
    };
    words.extend(text("Strategy").filter(|it| *it != "Plain").map(str::to_owned));
    words.extend(kind.map(str::to_owned));
    words.extend(text("Join Type").filter(|it| *it != "Inner").map(str::to_lowercase));
    words.extend(text("Index Name").map(|name| format!("using {name}")));
    let on = ["Relation Name", "CTE Name", "Function Name"].into_iter().find_map(text);
    words.extend(on.map(|name| format!("on {name}")));
    words.join(" ")
}

/// The plan without what differs from one execution to the next: a line for each node.
fn lines(plan: &Value) -> Vec<String> {
    let line = |node: PlanNode| format!("{}{}", "  ".repeat(node.depth), node.operation);
    plan_nodes(plan).into_iter().map(line).collect()
}

/// FNV-1a: the same on every machine and in every version.
fn hash(lines: &[String]) -> u64 {
    let bytes = lines.iter().flat_map(|line| line.bytes().chain([b'\n']));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(rows: i64, index: &str) -> Value {
        json!({ "Plan": { "Node Type": "Nested Loop", "Join Type": "Left", "Actual Rows": rows,
            "Actual Loops": 1, "Actual Total Time": 9.0, "Plan Rows": 1, "Plans": [
                { "Node Type": "Seq Scan", "Relation Name": "t", "Actual Loops": 3, "Actual Total Time": 2.0 },
                { "Node Type": "Index Scan", "Relation Name": "u", "Index Name": index },
            ] } })
    }

    #[test]
    fn a_shape_is_what_is_done_to_what_and_no_number() {
        assert_eq!(
            lines(&plan(1, "u_key")),
            ["Nested Loop left", "  Seq Scan on t", "  Index Scan using u_key on u"]
        );
        assert_eq!(plan_shape(&plan(1, "u_key")), plan_shape(&plan(2, "u_key")));
        assert_ne!(plan_shape(&plan(1, "u_key")), plan_shape(&plan(1, "u_other")));
        let gone = ('-', "Index Scan using a on u".to_owned());
        let new = ('+', "Index Scan using b on u".to_owned());
        assert_eq!(plan_changes(&plan(1, "a"), &plan(1, "b")), [gone, new]);
    }

    #[test]
    fn a_node_has_the_time_that_is_not_of_those_below() {
        let nodes = plan_nodes(&plan(10, "u_key"));
        let own: Vec<f64> = nodes.iter().map(|node| node.self_seconds * 1000.0).collect();
        assert_eq!(own, [3.0, 6.0, 0.0]);
        assert!(nodes[0].misestimated && !nodes[1].misestimated, "{nodes:?}");
        assert!(nodes[1].executed && !nodes[2].executed);
        assert!(plan_nodes(&json!({ "Truncated": true })).is_empty());
    }
}
