//! Privileges and comments of a relation, and the declared columns of a table.

use std::fmt::Write as _;

use super::manifest::{Constraint, Node};
use super::sql::{Relation, block, literal, quoted};

/// Returns the statements that grant privileges on the relation.
pub(super) fn grants(node: &Node, relation: &Relation) -> Vec<String> {
    let mut statements = Vec::new();
    for (privilege, grantees) in &node.settings.grants {
        let roles: Vec<String> = grantees.0.iter().map(|name| role(name)).collect();
        if !roles.is_empty() {
            let (table, roles) = (relation.sql(), roles.join(", "));
            statements.push(format!("GRANT {} ON {table} TO {roles};", privilege_name(privilege)));
        }
    }
    statements
}

/// As [`grants`], for a relation that has kept its privileges: revokes the other ones.
pub(super) fn grants_only(node: &Node, relation: &Relation) -> Vec<String> {
    let granted: Vec<String> = node
        .settings
        .grants
        .iter()
        .flat_map(|(privilege, grantees)| {
            grantees.0.iter().map(move |grantee| {
                let pair = format!("{} {}", privilege.to_uppercase(), grantee.to_lowercase());
                literal(&pair)
            })
        })
        .collect();
    if node.settings.grants.is_empty() {
        return Vec::new();
    }
    let revoke = format!(
        "FOR other IN SELECT g.grantee, g.privilege_type FROM information_schema.role_table_grants g\n    \
         WHERE g.grantor = current_role AND g.grantee <> current_role\n        \
         AND g.table_schema = {} AND g.table_name = {}\n        \
         AND upper(g.privilege_type) || ' ' || lower(g.grantee) <> ALL (ARRAY[{}]::text[])\nLOOP\n    \
         EXECUTE 'REVOKE ' || other.privilege_type || ' ON ' || {} || ' FROM '\n        \
         || CASE other.grantee WHEN 'PUBLIC' THEN 'PUBLIC' ELSE quote_ident(other.grantee) END;\nEND LOOP;",
        literal(&relation.schema),
        literal(&relation.name),
        granted.join(", "),
        literal(&relation.sql()),
    );
    let mut statements = vec![block("other record;", &revoke)];
    statements.extend(grants(node, relation));
    statements
}

/// Quotes the name of a role, unless it is a plain word, which dbt does not quote either.
fn role(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_plain = name.chars().all(plain) && !name.starts_with(|c: char| c.is_ascii_digit());
    if is_plain && !name.is_empty() { name.to_owned() } else { quoted(name) }
}

/// Removes everything but letters and spaces: a privilege is a keyword.
fn privilege_name(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphabetic() || *c == ' ').collect::<String>().to_uppercase()
}

/// Returns the statements that store the descriptions of the project as comments; `kind` is the
/// relation's kind in COMMENT ON.
pub(super) fn comments(node: &Node, relation: &Relation, kind: &str) -> Vec<String> {
    let mut statements = Vec::new();
    let persisted = &node.settings.persist_docs;
    if persisted.relation && !node.description.is_empty() {
        let text = literal(&node.description);
        statements.push(format!("COMMENT ON {kind} {} IS {text};", relation.sql()));
    }
    let mut columns = String::new();
    for column in node.columns.0.iter().filter(|it| persisted.columns && !it.description.is_empty())
    {
        let name = column_name(&column.name, column.quote);
        let _ = write!(
            columns,
            "IF EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = \
             pg_catalog.to_regclass({}) AND a.attname = {}) THEN\n    \
             COMMENT ON COLUMN {}.{} IS {};\nEND IF;\n",
            literal(&relation.sql()),
            literal(&name),
            relation.sql(),
            quoted(&name),
            literal(&column.description)
        );
    }
    if !columns.is_empty() {
        statements.push(block("", columns.trim_end()));
    }
    statements
}

/// Returns the name that a column has in the database.
fn column_name(name: &str, is_quoted: Option<bool>) -> String {
    if is_quoted == Some(true) { name.to_owned() } else { name.to_lowercase() }
}

/// The declared columns of a model with a contract.
pub(super) struct DeclaredColumns {
    /// Columns and constraints, as in CREATE TABLE.
    pub(super) definition: String,
    /// Names, separated by commas.
    pub(super) names: String,
}

/// Returns the declared columns of a model; `None` if it has no contract.
///
/// # Errors
/// Returns the reason if a column has no type, or a constraint has an unknown kind.
pub(super) fn declared_columns(node: &Node) -> Result<Option<DeclaredColumns>, String> {
    if !node.settings.contract.enforced {
        return Ok(None);
    }
    let (mut parts, mut names) = (Vec::new(), Vec::new());
    for column in &node.columns.0 {
        let Some(data_type) = &column.data_type else {
            return Err(format!("column \"{}\" of the contract has no data_type", column.name));
        };
        let name = quoted(&column_name(&column.name, column.quote));
        let mut part = format!("{name} {data_type}");
        for constraint in &column.constraints {
            let _ = write!(part, " {}", constraint_sql(constraint, false)?);
        }
        parts.push(part);
        names.push(name);
    }
    if parts.is_empty() {
        return Err("the contract declares no columns".to_owned());
    }
    for constraint in &node.constraints {
        parts.push(constraint_sql(constraint, true)?);
    }
    let (definition, names) = (parts.join(",\n    "), names.join(", "));
    Ok(Some(DeclaredColumns { definition, names }))
}

/// Formats a constraint of a column, or of the whole table.
fn constraint_sql(constraint: &Constraint, of_table: bool) -> Result<String, String> {
    let expression = constraint.expression.as_deref().unwrap_or_default();
    let columns = constraint.columns.join(", ");
    let list = if of_table { format!(" ({columns})") } else { String::new() };
    let name = constraint.name.as_ref().filter(|_| of_table);
    let prefix = name.map(|name| format!("CONSTRAINT {} ", quoted(name))).unwrap_or_default();
    let text = match constraint.kind.as_str() {
        "check" if !expression.is_empty() => format!("CHECK ({expression})"),
        "not_null" if !of_table => format!("NOT NULL {expression}"),
        "unique" => format!("UNIQUE {expression}{list}"),
        "primary_key" => format!("PRIMARY KEY {expression}{list}"),
        "foreign_key" => {
            let key = if of_table { format!("FOREIGN KEY{list} ") } else { String::new() };
            match &constraint.to {
                Some(to) => {
                    format!("{key}REFERENCES {to} ({})", constraint.to_columns.join(", "))
                }
                None => format!("{key}REFERENCES {expression}"),
            }
        }
        "custom" if !expression.is_empty() => expression.to_owned(),
        other => return Err(format!("constraints of the kind \"{other}\" are not supported")),
    };
    Ok(format!("{prefix}{}", text.trim_end()))
}
