//! SQL of incremental models: the first run creates the table, later runs add to it.

use super::attributes::{comments, grants_only};
use super::manifest::Node;
use super::relations::{create_table, header};
use super::sql::{Relation, block, execute, index_statements, literal, quoted};

/// The two forms of an incremental model's query. dbt compiles one of them, depending on whether the
/// table exists and on `--full-refresh`.
pub(super) struct Queries<'a> {
    /// Returns all rows.
    pub(super) full: Option<&'a str>,
    /// Returns the rows to add.
    pub(super) new_rows: Option<&'a str>,
}

/// Declarations of the block.
const DECLARATIONS: &str =
    "kind \"char\"; leftover record; changed record; names text; pairs text;";

/// Returns the statements that create the table of an incremental model or add rows to it.
///
/// # Errors
/// Returns the reason if the strategy or the contract is not supported.
pub(super) fn incremental(
    node: &Node,
    relation: &Relation,
    queries: &Queries<'_>,
    [before, after]: [Vec<String>; 2],
    full_refresh: bool,
) -> Result<Vec<String>, String> {
    // An unknown strategy is an error also while the manifest has no SQL for new rows.
    merge(node, relation, &staging(relation), relation)?;
    let (built, old) = (relation.intermediate(), relation.backup());
    let missing = |what: &str, hint: &str| {
        format!(
            "RAISE EXCEPTION USING ERRCODE = 'MT900', MESSAGE = {}, HINT = {};",
            literal(&format!("table {} {what}", relation.sql())),
            literal(hint)
        )
    };
    let create = |table: &Relation, query: &str| {
        let mut parts = vec![execute(&create_table(node, table, query)?)];
        parts.extend(index_statements(table, &node.settings.indexes).iter().map(|it| execute(it)));
        Ok::<_, String>(parts.join("\n"))
    };
    let (first, replace) = match queries.full {
        Some(query) => (
            create(relation, query)?,
            format!(
                "{}\n{}\n{}",
                create(&built, query)?,
                relation.swap_statements(),
                Relation::drop_statements(&[&old])
            ),
        ),
        None => {
            let hint = "Run the job of an import with --full-refresh once, or import with \
                        --full-refresh-manifest.";
            let error = missing("does not exist, and the manifest has only its new rows", hint);
            (error.clone(), error)
        }
    };
    let add = match queries.new_rows {
        Some(query) => add_rows(node, relation, query)?,
        None => missing(
            "exists, but the manifest was compiled before",
            "Run dbt compile and pgmill import dbt again: the SQL of an incremental model depends \
             on whether its table exists.",
        ),
    };
    let choice = if node.is_rebuilt(full_refresh) {
        format!("IF kind IS NULL THEN\n{first}\nELSE\n{replace}\nEND IF;")
    } else {
        format!(
            "IF kind IS NULL THEN\n{first}\nELSIF kind NOT IN ('r', 'p') THEN\n{replace}\nELSE\n{add}\nEND IF;"
        )
    };
    let body = format!("kind := {};\n{choice}", relation.kind());
    let mut statements = vec![Relation::drop_block(&[&built, &old])];
    statements.extend(before);
    statements.push(block(DECLARATIONS, &body));
    statements.extend(grants_only(node, relation));
    statements.extend(comments(node, relation, "TABLE"));
    statements.extend(after);
    Ok(statements)
}

/// The temporary table that has the new rows.
pub(super) fn staging(relation: &Relation) -> Relation {
    Relation { schema: "pg_temp".to_owned(), name: relation.intermediate().name }
}

/// Returns the statements of the block that add the new rows to the existing table.
fn add_rows(node: &Node, relation: &Relation, query: &str) -> Result<String, String> {
    let new = staging(relation);
    let create = format!(
        "{}CREATE TEMPORARY TABLE {} ON COMMIT DROP AS (\n{query}\n);",
        header(node),
        quoted(&new.name)
    );
    let mut parts = vec![execute(&create)];
    if !node.settings.contract.enforced {
        parts.push(widen_columns(&new, relation));
    }
    let mode = node.settings.on_schema_change.as_deref().unwrap_or("ignore");
    parts.push(change_columns(mode, &new, relation));
    let columns_of = if matches!(mode, "append_new_columns" | "sync_all_columns" | "fail") {
        &new
    } else {
        relation
    };
    parts.push(column_names(columns_of, ""));
    parts.push(merge(node, relation, &new, columns_of)?);
    Ok(parts.join("\n"))
}

/// Reads the names of the columns, quoted, into `names`. `except` is a condition on the column `a`.
pub(super) fn column_names(of: &Relation, except: &str) -> String {
    format!(
        "SELECT pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY a.attnum) INTO names\n    \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = pg_catalog.to_regclass({}) AND a.attnum > 0\n        \
         AND NOT a.attisdropped{except};",
        literal(&of.sql())
    )
}

/// Widens text columns of the table for longer texts of the new rows.
pub(super) fn widen_columns(new: &Relation, table: &Relation) -> String {
    let size = |alias: &str| {
        format!("CASE WHEN {alias}.atttypmod > 4 THEN {alias}.atttypmod - 4 ELSE 256 END")
    };
    let texts = "('text'::regtype, 'varchar'::regtype, 'bpchar'::regtype)";
    format!(
        "FOR changed IN SELECT o.attname, {new_size} AS size FROM pg_catalog.pg_attribute n\n    \
         JOIN pg_catalog.pg_attribute o ON o.attrelid = pg_catalog.to_regclass({table}) AND o.attname = n.attname\n    \
         WHERE n.attrelid = pg_catalog.to_regclass({new}) AND n.attnum > 0 AND NOT n.attisdropped AND NOT o.attisdropped\n        \
         AND n.atttypid IN {texts} AND o.atttypid IN {texts} AND {new_size} > {old_size}\nLOOP\n    \
         EXECUTE pg_catalog.format('ALTER TABLE %s ALTER COLUMN %I TYPE varchar(%s)', {table}, changed.attname, changed.size);\n\
         END LOOP;",
        new_size = size("n"),
        old_size = size("o"),
        table = literal(&table.sql()),
        new = literal(&new.sql()),
    )
}

/// Lists the columns of both tables side by side, as a query: first those that only one of them has.
fn both_columns(new: &Relation, table: &Relation) -> String {
    let columns = |of: &Relation| {
        format!(
            "(SELECT a.attname, a.attnum, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type,\n        \
             a.atttypid IN ('text'::regtype, 'varchar'::regtype, 'bpchar'::regtype) AS is_text FROM pg_catalog.pg_attribute a\n        \
             WHERE a.attrelid = pg_catalog.to_regclass({}) AND a.attnum > 0 AND NOT a.attisdropped)",
            literal(&of.sql())
        )
    };
    format!(
        "SELECT coalesce(n.attname, o.attname) AS name, n.type AS new_type, o.type AS old_type\n    \
         FROM {} AS n FULL JOIN {} AS o ON o.attname = n.attname\n    \
         WHERE n.type IS DISTINCT FROM o.type AND NOT coalesce(n.is_text AND o.is_text, false)\n    \
         ORDER BY n.type IS NOT NULL AND o.type IS NOT NULL, n.attnum",
        columns(new),
        columns(table)
    )
}

/// Changes the columns of the table, as `on_schema_change` demands.
fn change_columns(mode: &str, new: &Relation, table: &Relation) -> String {
    let alter = |what: &str, arguments: &str| {
        format!(
            "EXECUTE pg_catalog.format('ALTER TABLE %s {what}', {}, {arguments});",
            literal(&table.sql())
        )
    };
    let add = alter("ADD COLUMN %I %s", "changed.name, changed.new_type");
    // As dbt does it: the column becomes the last one, and what depends on the old one is dropped.
    let retype = [
        alter("ADD COLUMN %I %s", "changed.name || '__dbt_alter', changed.new_type"),
        format!(
            "EXECUTE pg_catalog.format('UPDATE %s SET %I = %I', {}, changed.name || '__dbt_alter', changed.name);",
            literal(&table.sql())
        ),
        alter("DROP COLUMN %I CASCADE", "changed.name"),
        alter("RENAME COLUMN %I TO %I", "changed.name || '__dbt_alter', changed.name"),
    ]
    .join("\n        ");
    let body = match mode {
        "append_new_columns" => format!("IF changed.old_type IS NULL THEN {add} END IF;"),
        "sync_all_columns" => format!(
            "IF changed.old_type IS NULL THEN {add}\n    ELSIF changed.new_type IS NULL THEN {}\n    ELSE {retype} END IF;",
            alter("DROP COLUMN %I", "changed.name"),
        ),
        "fail" => "RAISE EXCEPTION 'column \"%\" is % in the new rows, and % in the table', changed.name,\n        \
                   coalesce(changed.new_type, 'absent'), coalesce(changed.old_type, 'absent')\n        \
                   USING ERRCODE = 'MT900', HINT = 'Change on_schema_change, or run with a full refresh.';"
            .to_owned(),
        _ => return String::new(),
    };
    format!("FOR changed IN {} LOOP\n    {body}\nEND LOOP;", both_columns(new, table))
}

/// Returns the statements that write the new rows, as the strategy of the model demands.
fn merge(
    node: &Node,
    table: &Relation,
    new: &Relation,
    columns_of: &Relation,
) -> Result<String, String> {
    let settings = &node.settings;
    let key = &settings.unique_key.0;
    let mut predicates = settings.predicates.0.clone();
    if predicates.is_empty() {
        predicates.clone_from(&settings.incremental_predicates.0);
    }
    let insert = format!(
        "EXECUTE 'INSERT INTO ' || {} || ' (' || names || ') SELECT ' || names || ' FROM ' || {};",
        literal(&table.sql()),
        literal(&new.sql())
    );
    match settings.incremental_strategy.as_deref().unwrap_or("default") {
        "append" => Ok(insert),
        "default" | "delete+insert" if key.is_empty() => Ok(insert),
        "default" | "delete+insert" => {
            let key = key.join(", ");
            let also: String =
                predicates.iter().map(|predicate| format!("\n    AND {predicate}")).collect();
            let delete = format!(
                "DELETE FROM {} AS DBT_INTERNAL_DEST WHERE ({key}) IN (\n    \
                 SELECT DISTINCT {key} FROM {} AS DBT_INTERNAL_SOURCE){also}",
                table.sql(),
                new.sql()
            );
            Ok(format!("{}\n{insert}", execute(&delete)))
        }
        "merge" => merge_statement(node, [table, new, columns_of], predicates),
        other => Err(format!("the incremental strategy \"{other}\" is not supported")),
    }
}

/// Returns a MERGE, which needs PostgreSQL 15. The relations are the table, the new rows, and the one
/// of both whose columns are written.
fn merge_statement(
    node: &Node,
    [table, new, columns_of]: [&Relation; 3],
    mut conditions: Vec<String>,
) -> Result<String, String> {
    let settings = &node.settings;
    let (key, update, exclude) = (
        &settings.unique_key.0,
        &settings.merge_update_columns.0,
        &settings.merge_exclude_columns.0,
    );
    if !update.is_empty() && !exclude.is_empty() {
        return Err("merge_update_columns and merge_exclude_columns exclude each other".to_owned());
    }
    conditions.extend(
        key.iter().map(|key| format!("DBT_INTERNAL_SOURCE.{key} = DBT_INTERNAL_DEST.{key}")),
    );
    if key.is_empty() {
        conditions.push("FALSE".to_owned());
    }
    let on = format!("({})", conditions.join(") AND ("));
    let pairs = if update.is_empty() {
        let excluded: Vec<String> = exclude.iter().map(|it| literal(&it.to_lowercase())).collect();
        format!(
            "SELECT pg_catalog.string_agg(pg_catalog.format('%1$I = DBT_INTERNAL_SOURCE.%1$I', a.attname), ', ' ORDER BY a.attnum)\n    \
             INTO pairs FROM pg_catalog.pg_attribute a WHERE a.attrelid = pg_catalog.to_regclass({})\n    \
             AND a.attnum > 0 AND NOT a.attisdropped AND lower(a.attname) <> ALL (ARRAY[{}]::text[]);",
            literal(&columns_of.sql()),
            excluded.join(", ")
        )
    } else {
        let pairs: Vec<String> =
            update.iter().map(|it| format!("{it} = DBT_INTERNAL_SOURCE.{it}")).collect();
        format!("pairs := {};", literal(&pairs.join(", ")))
    };
    let update = if key.is_empty() {
        "''".to_owned()
    } else {
        "'WHEN MATCHED THEN UPDATE SET ' || pairs".to_owned()
    };
    let head = format!(
        "MERGE INTO {} AS DBT_INTERNAL_DEST USING {} AS DBT_INTERNAL_SOURCE ON {on} ",
        table.sql(),
        new.sql()
    );
    Ok(format!(
        "{pairs}\nEXECUTE {} || {update} || ' WHEN NOT MATCHED THEN INSERT (' || names || ') VALUES (' || names || ')';",
        literal(&head)
    ))
}
