//! SQL of models that each run builds anew: views, tables and materialized views.

use super::attributes::{comments, declared_columns, grants};
use super::manifest::Node;
use super::sql::{Relation, block, execute, index_statements};

/// Returns the statement that creates a table from a query, with the columns of the contract if the
/// model has one.
///
/// # Errors
/// Returns the reason if the contract is not supported.
pub(super) fn create_table(node: &Node, table: &Relation, query: &str) -> Result<String, String> {
    let header = header(node);
    let unlogged = if node.settings.unlogged == Some(true) { "UNLOGGED " } else { "" };
    let name = table.sql();
    Ok(match declared_columns(node)? {
        None => format!("{header}CREATE {unlogged}TABLE {name} AS (\n{query}\n);"),
        Some(columns) => {
            let (definition, names) = (columns.definition, columns.names);
            format!(
                "{header}CREATE {unlogged}TABLE {name} (\n    {definition}\n);\n\
                 INSERT INTO {name} ({names}) SELECT {names} FROM (\n{query}\n) AS model_query;"
            )
        }
    })
}

/// SQL that the project runs before the statement that builds the model.
pub(super) fn header(node: &Node) -> String {
    node.settings.sql_header.as_ref().map(|it| format!("{it}\n")).unwrap_or_default()
}

/// Returns the statements that build a table next to the existing one and replace it.
///
/// # Errors
/// As [`create_table`].
pub(super) fn table(
    node: &Node,
    relation: &Relation,
    query: &str,
    [before, after]: [Vec<String>; 2],
) -> Result<Vec<String>, String> {
    let (built, old) = (relation.intermediate(), relation.backup());
    let mut statements = vec![Relation::drop_block(&[&built, &old])];
    statements.extend(before);
    statements.push(create_table(node, &built, query)?);
    statements.extend(index_statements(&built, &node.settings.indexes));
    statements.push(block("", &relation.swap_statements()));
    statements.extend(after);
    statements.extend(grants(node, relation));
    statements.extend(comments(node, relation, "TABLE"));
    statements.push(Relation::drop_block(&[&old]));
    Ok(statements)
}

/// As [`table`], for a view.
pub(super) fn view(
    node: &Node,
    relation: &Relation,
    query: &str,
    [before, after]: [Vec<String>; 2],
) -> Vec<String> {
    let (built, old) = (relation.intermediate(), relation.backup());
    let mut statements = vec![Relation::drop_block(&[&built, &old])];
    statements.extend(before);
    statements.push(format!("{}CREATE VIEW {} AS (\n{query}\n);", header(node), built.sql()));
    statements.push(block("", &relation.swap_statements()));
    statements.extend(grants(node, relation));
    statements.extend(comments(node, relation, "VIEW"));
    statements.extend(after);
    statements.push(Relation::drop_block(&[&old]));
    statements
}

/// Returns the statements that create a materialized view, or refresh it if it exists.
pub(super) fn materialized_view(
    node: &Node,
    relation: &Relation,
    query: &str,
    [before, after]: [Vec<String>; 2],
    full_refresh: bool,
) -> Vec<String> {
    let mut create =
        vec![execute(&format!("CREATE MATERIALIZED VIEW {} AS\n{query}", relation.sql()))];
    create.extend(index_statements(relation, &node.settings.indexes).iter().map(|it| execute(it)));
    let create = format!("{}\n{}", Relation::drop_statements(&[relation]), create.join("\n"));
    let body = if node.is_rebuilt(full_refresh) {
        create
    } else {
        format!(
            "IF {} = 'm' THEN\nREFRESH MATERIALIZED VIEW {};\nELSE\n{create}\nEND IF;",
            relation.kind(),
            relation.sql()
        )
    };
    let mut statements = before;
    statements.push(block("leftover record;", &body));
    statements.extend(grants(node, relation));
    statements.extend(comments(node, relation, "MATERIALIZED VIEW"));
    statements.extend(after);
    statements
}
