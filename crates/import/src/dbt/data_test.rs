//! SQL of data tests: a task that fails if the test's query returns rows.

use super::manifest::Node;
use super::sql::{Relation, block, execute, literal};
use crate::dbt_keys::{FAILURES, WARNED};

/// Setting that carries the number of failures from the block to the result.
const SETTING: &str = "pgmill.dbt_failures";

/// Whether dbt keeps the rows that fail.
pub(super) fn stores_failures(node: &Node) -> bool {
    let kept_as = node.settings.store_failures_as.as_deref();
    node.settings.store_failures == Some(true) && kept_as != Some("ephemeral")
}

/// Returns the statements that store the rows that fail. They are a task of their own: the task of
/// the test rolls back if the test fails.
pub(super) fn store(node: &Node, relation: &Relation, query: &str) -> Vec<String> {
    let is_view = node.settings.store_failures_as.as_deref() == Some("view");
    let kind = if is_view { "VIEW" } else { "TABLE" };
    vec![
        Relation::drop_block(&[relation]),
        format!("CREATE {kind} {} AS (\n{}\n);", relation.sql(), limited(node, query)),
    ]
}

/// Returns the statements that count the failures of `query`, or of the stored ones.
pub(super) fn test(node: &Node, stored: Option<&Relation>, query: &str) -> Vec<String> {
    let settings = &node.settings;
    let count = settings.fail_calc.as_deref().unwrap_or("count(*)");
    let warn_if = settings.warn_if.as_deref().unwrap_or("!= 0");
    let error_if = settings.error_if.as_deref().unwrap_or("!= 0");
    let rows = match stored {
        Some(relation) => format!("SELECT * FROM {}", relation.sql()),
        None => limited(node, query),
    };
    let measure = format!(
        "SELECT {count} AS failures, {count} {warn_if} AS should_warn, {count} {error_if} AS should_error\nFROM (\n{rows}\n) AS dbt_internal_test"
    );
    let measure = execute(&measure);
    let measure = measure.trim_end_matches(';');
    let got = |condition: &str| {
        format!(
            "'Got ' || found.failures || CASE found.failures WHEN 1 THEN ' result' ELSE ' results' END \
             || ', configured to {{}} if ' || {}",
            literal(condition)
        )
    };
    let warning = format!(
        "IF found.should_warn THEN\n    RAISE WARNING USING MESSAGE = {};\nEND IF;",
        got(warn_if).replace("{}", "warn")
    );
    let is_error = !settings.severity.as_deref().unwrap_or("error").eq_ignore_ascii_case("warn");
    let verdict = if is_error {
        format!(
            "IF found.should_error THEN\n    RAISE EXCEPTION USING ERRCODE = 'MT900', MESSAGE = {};\nEND IF;\n{warning}",
            got(error_if).replace("{}", "fail")
        )
    } else {
        warning
    };
    let body = format!(
        "{measure} INTO found;\n{verdict}\n\
         PERFORM pg_catalog.set_config('{SETTING}', found.failures::text, true),\n    \
         pg_catalog.set_config('{SETTING}_warned', coalesce(found.should_warn, false)::text, true);"
    );
    vec![
        block("found record;", &body),
        format!(
            "SELECT pg_catalog.current_setting('{SETTING}') AS {FAILURES}, \
             pg_catalog.current_setting('{SETTING}_warned')::boolean AS {WARNED};"
        ),
    ]
}

/// Applies the limit of the test.
fn limited(node: &Node, query: &str) -> String {
    match node.settings.limit {
        Some(limit) => format!("SELECT * FROM (\n{query}\n) AS test_query LIMIT {limit}"),
        None => query.to_owned(),
    }
}
