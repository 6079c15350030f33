//! Plans of EXPLAIN (ANALYZE, FORMAT JSON): their nodes in the order of the tree, totals, and
//! changes since the previous plan.

use serde::Serialize;
use serde_json::Value;

/// Factor between estimated and actual rows from which an estimate is highlighted as wrong.
const MISESTIMATE_FACTOR: f64 = 10.0;

/// A node of the tree.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct PlanNode {
    /// Depth in the tree; 0 is the root.
    pub depth: usize,
    /// Operation, and the object on which it operates.
    pub operation: String,
    /// Whether the node was executed at least once.
    pub executed: bool,
    /// Average number of rows in one execution of the node.
    pub rows: f64,
    /// Number of rows in one execution of the node that the planner expected.
    pub expected_rows: f64,
    /// Whether `rows` and `expected_rows` differ by a factor of ten or more.
    pub misestimated: bool,
    /// Number of executions of the node.
    pub loops: f64,
    /// Seconds that all executions took, without the child nodes.
    pub self_seconds: f64,
    /// Number of shared buffer hits, including those of child nodes.
    pub blocks_hit: i64,
    /// Number of blocks read, including those of child nodes.
    pub blocks_read: i64,
    /// Number of blocks written to temporary files, including those of child nodes.
    pub temp_blocks_written: i64,
}

/// A trigger that the statement fired.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct PlanTrigger {
    /// Name of the trigger.
    pub name: String,
    /// Duration of all calls together, in seconds.
    pub seconds: f64,
    /// Number of calls.
    pub calls: i64,
}

/// Totals of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct PlanTotals {
    /// Planning time in seconds.
    pub planning_seconds: Option<f64>,
    /// Execution time in seconds.
    pub execution_seconds: Option<f64>,
    /// Number of bytes of WAL written.
    pub wal_bytes: Option<i64>,
    /// Triggers that the statement fired.
    pub triggers: Vec<PlanTrigger>,
    /// Whether the plan was too long and was truncated.
    pub truncated: bool,
}

/// Returns the nodes of a plan. Each node precedes its children.
#[must_use]
pub fn plan_nodes(plan: &Value) -> Vec<PlanNode> {
    let mut nodes = Vec::new();
    if plan["Plan"].is_object() {
        gather(&plan["Plan"], 0, &mut nodes);
    }
    nodes
}

/// Returns the totals of a plan.
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

/// Returns a hash of the plan without its numbers, as 16 hexadecimal digits.
#[must_use]
pub fn plan_shape(plan: &Value) -> String {
    format!("{:016x}", hash(&lines(plan)))
}

/// Returns the lines of the tree that were removed (`-`) and added (`+`).
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

/// Describes the operation of a node and its object. These lines make up the shape of a plan.
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

/// Formats the plan without its numbers, with one line per node.
fn lines(plan: &Value) -> Vec<String> {
    let line = |node: PlanNode| format!("{}{}", "  ".repeat(node.depth), node.operation);
    plan_nodes(plan).into_iter().map(line).collect()
}

/// Returns the FNV-1a hash, which is the same on all machines and in all versions.
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
    fn a_shape_has_operations_and_objects_but_no_numbers() {
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
    fn the_time_of_a_node_excludes_its_children() {
        let nodes = plan_nodes(&plan(10, "u_key"));
        let own: Vec<f64> = nodes.iter().map(|node| node.self_seconds * 1000.0).collect();
        assert_eq!(own, [3.0, 6.0, 0.0]);
        assert!(nodes[0].misestimated && !nodes[1].misestimated, "{nodes:?}");
        assert!(nodes[1].executed && !nodes[2].executed);
        assert!(plan_nodes(&json!({ "Truncated": true })).is_empty());
    }
}
