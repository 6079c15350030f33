//! Reference of the SQL functions and views, from their grants and comments.

use super::{GENERATED, cell, prose};
use crate::harness::Database;

/// The roles whose members call functions, each with a heading and a sentence. A function appears
/// under the first role that may execute it.
const ROLES: [(&str, &str, &str); 4] = [
    (
        "mill_producer",
        "Producers",
        "Applications that submit tasks and start runs are members of `mill_producer`.",
    ),
    ("mill_viewer", "Viewers", "Members of `mill_viewer` see the queue, and change nothing."),
    (
        "mill_operator",
        "Operators",
        "Members of `mill_operator` steer the fleet; each of their actions is recorded in `mill.audit`.",
    ),
    ("", "The owner", "These functions are for the owner of the schema and for superusers only."),
];

const INTRODUCTION: &str = "
These functions and views of the schema `mill` are the interface for applications and people. The schema has further
functions, which the programs and these functions call: any version may change them. The texts are the comments of the
objects, as `\\df+ mill.*` in psql shows them. Arguments with `DEFAULT` are optional, and may be given by name
(`queue => 'etl'`). [Security](../../SECURITY.md) describes the roles.
";

/// Functions for people and applications: name, whether it is a procedure, arguments, result,
/// comment, roles.
const FUNCTIONS: &str = "
SELECT p.proname::text, p.prokind = 'p', pg_get_function_arguments(p.oid),
    coalesce(pg_get_function_result(p.oid), ''), obj_description(p.oid), g.roles
FROM pg_proc p
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(r.rolname::text ORDER BY r.rolname), '{}') AS roles
    FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
    JOIN pg_roles r ON r.oid = a.grantee
    WHERE r.rolname LIKE 'mill\\_%' AND r.rolname <> 'mill_owner') g
WHERE p.pronamespace = 'mill'::regnamespace AND p.prorettype <> 'trigger'::regtype
    AND (g.roles && '{mill_producer,mill_viewer,mill_operator}'
        OR obj_description(p.oid) LIKE '%For mill\\_owner only%')
ORDER BY p.proname, pg_get_function_arguments(p.oid)";

/// Views: name, comment, columns, roles that may read them.
const VIEWS: &str = "
SELECT c.relname::text, obj_description(c.oid),
    (SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute
     WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
    (SELECT coalesce(array_agg(r.rolname::text ORDER BY r.rolname), '{}')
     FROM aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
     WHERE a.privilege_type = 'SELECT' AND r.rolname LIKE 'mill\\_%' AND r.rolname <> 'mill_owner')
FROM pg_class c WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind = 'v' ORDER BY c.relname";

/// Returns the page.
pub(super) async fn page(database: &Database) -> String {
    let mut page = format!("{GENERATED}\n# SQL functions\n{INTRODUCTION}");
    let functions = database.rows(FUNCTIONS, &[]).await;
    assert!(functions.len() > 80, "{} functions", functions.len());
    for (role, heading, about) in ROLES {
        page += &format!("\n## {heading}\n\n{about}\n");
        for row in &functions {
            let roles: Vec<String> = row.get(5);
            let first = ROLES.iter().find(|(role, ..)| roles.iter().any(|it| it == role));
            if first.map_or("", |(role, ..)| role) != role {
                continue;
            }
            let (name, procedure): (&str, bool) = (row.get(0), row.get(1));
            let declaration = declaration(name, procedure, row.get(2), row.get(3));
            let comment = prose(row.get(4));
            page += &format!("\n### mill.{name}\n\n```text\n{declaration}\n```\n\n{comment}.\n");
            let others = roles.iter().filter(|it| *it != role).map(|it| format!("`{it}`"));
            let others: Vec<String> = others.collect();
            if !others.is_empty() {
                page += &format!("\nAlso granted to {}.\n", others.join(", "));
            }
        }
    }
    page += "\n## Views\n\n| view | contents | columns | roles |\n|---|---|---|---|\n";
    for row in database.rows(VIEWS, &[]).await {
        let (name, comment, columns): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
        let roles: Vec<String> = row.get(3);
        let roles = roles.iter().map(|role| format!("`{role}`")).collect::<Vec<_>>().join(", ");
        page += &format!("| `mill.{name}` | {} | {} | {roles} |\n", cell(comment), cell(columns));
    }
    page
}

/// Returns the declaration of a function, with one argument per line if it is long.
fn declaration(name: &str, procedure: bool, arguments: &str, result: &str) -> String {
    const MAX_LENGTH: usize = 100;
    let result = if procedure { String::new() } else { format!("\n    RETURNS {result}") };
    let short = format!("mill.{name}({arguments})");
    if short.len() <= MAX_LENGTH {
        return short + &result;
    }
    format!("mill.{name}(\n    {}){result}", split(arguments).join(",\n    "))
}

/// Splits at the commas that are not inside brackets or quotes.
fn split(arguments: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut quoted) = (Vec::new(), 0, 0, false);
    for (at, character) in arguments.char_indices() {
        match character {
            '\'' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' | ']' | '}' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                parts.push(arguments[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(arguments[start..].trim());
    parts
}

#[test]
fn a_comma_inside_an_argument_does_not_separate_arguments() {
    let arguments = "a numeric(3,2), b text DEFAULT 'x, y'::text, c text[] DEFAULT '{1,2}'::text[]";
    assert_eq!(split(arguments).len(), 3, "{:?}", split(arguments));
}
