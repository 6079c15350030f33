//! SQL of snapshots: tables that keep each version of a row, with the period in which it was valid.

use super::attributes::{comments, grants_only};
use super::incremental::{column_names, staging, widen_columns};
use super::manifest::Node;
use super::sql::{Relation, block, execute, index_statements, literal, quoted};

const NOW: &str = "now()::timestamp without time zone";

/// Declarations of the block.
const DECLARATIONS: &str =
    "kind \"char\"; changed record; names text; condition text; added boolean;";

/// The settings of a snapshot.
struct Snapshot<'a> {
    query: &'a str,
    table: &'a Relation,
    key: &'a [String],
    /// Expression for the time of a version.
    updated_at: &'a str,
    /// Columns to compare; `None` for the strategy `timestamp`.
    check_cols: Option<&'a [String]>,
    /// Whether the versions of missing rows end.
    ends_missing: bool,
    /// Expression for the end of the current version.
    current: Option<&'a str>,
    names: Names<'a>,
}

/// Names of the columns that a snapshot adds.
struct Names<'a> {
    valid_from: &'a str,
    valid_to: &'a str,
    scd_id: &'a str,
    updated_at: &'a str,
}

/// Returns the statements that create the table of a snapshot or add the new versions to it.
///
/// # Errors
/// Returns the reason if a setting is not supported.
pub(super) fn snapshot(
    node: &Node,
    table: &Relation,
    query: &str,
    [before, after]: [Vec<String>; 2],
) -> Result<Vec<String>, String> {
    let it = Snapshot::of(node, table, query)?;
    let mut create = vec![execute(&it.create())];
    create.extend(index_statements(table, &node.settings.indexes).iter().map(|it| execute(it)));
    let wrong = literal(&format!("{} is not a table", table.sql()));
    let body = format!(
        "kind := {};\nIF kind IS NULL THEN\n{}\nELSIF kind NOT IN ('r', 'p') THEN\n\
         RAISE EXCEPTION USING ERRCODE = 'MT900', MESSAGE = {wrong};\nELSE\n{}\nEND IF;",
        table.kind(),
        create.join("\n"),
        it.add_versions()
    );
    let mut statements = before;
    statements.push(block(DECLARATIONS, &body));
    statements.extend(grants_only(node, table));
    statements.extend(comments(node, table, "TABLE"));
    statements.extend(after);
    Ok(statements)
}

impl<'a> Snapshot<'a> {
    fn of(node: &'a Node, table: &'a Relation, query: &'a str) -> Result<Self, String> {
        let settings = &node.settings;
        let (updated_at, check_cols) = match settings.strategy.as_deref() {
            Some("timestamp") => match &settings.updated_at {
                Some(column) => (column.as_str(), None),
                None => return Err("a snapshot by timestamp needs updated_at".to_owned()),
            },
            Some("check") => {
                let at = settings.updated_at.as_deref().unwrap_or(NOW);
                (at, Some(settings.check_cols.0.as_slice()))
            }
            other => {
                let name = other.unwrap_or("none");
                return Err(format!("the snapshot strategy \"{name}\" is not supported"));
            }
        };
        let ends_missing = match settings.hard_deletes.as_deref() {
            None => settings.invalidate_hard_deletes == Some(true),
            Some("ignore") => false,
            Some("invalidate") => true,
            Some(other) => return Err(format!("hard_deletes: {other} is not supported")),
        };
        let key = settings.unique_key.0.as_slice();
        if key.is_empty() || check_cols.is_some_and(<[_]>::is_empty) {
            return Err("a snapshot needs unique_key, and by check also check_cols".to_owned());
        }
        let name = |name: &'static str| {
            let given = settings.snapshot_meta_column_names.get(name);
            given.and_then(Option::as_deref).unwrap_or(name)
        };
        let names = Names {
            valid_from: name("dbt_valid_from"),
            valid_to: name("dbt_valid_to"),
            scd_id: name("dbt_scd_id"),
            updated_at: name("dbt_updated_at"),
        };
        let current = settings.dbt_valid_to_current.as_deref();
        Ok(Self { query, table, key, updated_at, check_cols, ends_missing, current, names })
    }

    /// Expression for the id of a version: a hash of key and time.
    fn scd_id(&self) -> String {
        let parts: Vec<String> = self
            .key
            .iter()
            .map(String::as_str)
            .chain([self.updated_at])
            .map(|part| format!("coalesce(CAST({part} AS varchar), '')"))
            .collect();
        format!("md5({})", parts.join(" || '|' || "))
    }

    /// Expression for the end of a new version, which has the type of its time.
    fn valid_to(&self) -> String {
        let at = self.updated_at;
        format!("coalesce(nullif({at}, {at}), {})", self.current.unwrap_or("null"))
    }

    /// Condition that the version `alias` is the current one.
    fn is_current(&self, alias: &str) -> String {
        let valid_to = self.names.valid_to;
        match self.current {
            None => format!("{alias}.{valid_to} IS NULL"),
            Some(current) => {
                format!("({alias}.{valid_to} = {current} OR {alias}.{valid_to} IS NULL)")
            }
        }
    }

    fn create(&self) -> String {
        let (names, at) = (&self.names, self.updated_at);
        format!(
            "CREATE TABLE {} AS (\nSELECT *, {} AS {}, {at} AS {}, {at} AS {}, {} AS {}\nFROM (\n{}\n) AS snapshot_query\n);",
            self.table.sql(),
            self.scd_id(),
            names.scd_id,
            names.updated_at,
            names.valid_from,
            self.valid_to(),
            names.valid_to,
            self.query
        )
    }

    /// Returns the statements of the block that end old versions and add new ones.
    fn add_versions(&self) -> String {
        let new = staging(self.table);
        let temporary = |name: &str| Relation { schema: new.schema.clone(), name: name.to_owned() };
        let (probe, ended) = (temporary("dbt_compared"), temporary("dbt_ended"));
        let condition = match self.check_cols {
            None => format!(
                "condition := {};",
                literal(&format!("(old.{} < new.{})", self.names.valid_from, self.updated_at))
            ),
            Some(columns) => self.compared_columns(columns, &probe),
        };
        let keys: Vec<String> =
            (1..=self.key.len()).map(|n| format!("'dbt_unique_key_{n}'")).collect();
        let except = format!(" AND a.attname NOT IN ({})", keys.join(", "));
        let end = format!(
            "UPDATE {} AS version SET {valid_to} = ended.finished_at FROM {} AS ended\n    \
             WHERE ended.id::text = version.{}::text AND {}",
            self.table.sql(),
            ended.sql(),
            self.names.scd_id,
            self.is_current("version"),
            valid_to = self.names.valid_to,
        );
        let parts = [
            condition,
            self.stage_new_versions(&new),
            self.stage_ended_versions(&ended),
            widen_columns(&new, self.table),
            self.add_columns(&new, &except),
            column_names(&new, &except),
            execute(&end),
            format!(
                "EXECUTE 'INSERT INTO ' || {} || ' (' || names || ') SELECT ' || names || ' FROM ' || {};",
                literal(&self.table.sql()),
                literal(&new.sql()),
            ),
        ];
        parts.join("\n")
    }

    /// Sets `condition`: whether one of the columns has changed, or is new.
    fn compared_columns(&self, columns: &[String], probe: &Relation) -> String {
        let list = if columns == ["all"] { "*".to_owned() } else { columns.join(", ") };
        let create = format!(
            "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {list} FROM (\n{}\n) AS snapshot_query WHERE false;",
            quoted(&probe.name),
            self.query
        );
        format!(
            "{}\nSELECT coalesce(pg_catalog.bool_or(o.attname IS NULL), false),\n        \
             '(' || pg_catalog.string_agg(pg_catalog.format('old.%1$I IS DISTINCT FROM new.%1$I', n.attname), ' OR ') || ')'\n    \
             INTO added, condition FROM pg_catalog.pg_attribute n LEFT JOIN pg_catalog.pg_attribute o\n    \
             ON o.attrelid = pg_catalog.to_regclass({}) AND o.attname = n.attname AND NOT o.attisdropped\n    \
             WHERE n.attrelid = pg_catalog.to_regclass({}) AND n.attnum > 0 AND NOT n.attisdropped;\n\
             IF added THEN condition := 'true'; END IF;",
            execute(&create),
            literal(&self.table.sql()),
            literal(&probe.sql()),
        )
    }

    /// The rows of the query (`new`) and the current versions of the table (`old`), as the beginning
    /// of a statement.
    fn new_and_old(&self) -> String {
        let (names, at) = (&self.names, self.updated_at);
        let keys: Vec<String> = self
            .key
            .iter()
            .enumerate()
            .map(|(n, key)| format!("{key} AS dbt_unique_key_{}", n + 1))
            .collect();
        let keys = keys.join(", ");
        format!(
            "WITH source AS (\n{}\n),\nold AS (SELECT *, {keys} FROM {} AS version WHERE {}),\n\
             new AS (SELECT *, {keys}, {at} AS {}, {at} AS {}, {} AS {}, {} AS {} FROM source)\n",
            self.query,
            self.table.sql(),
            self.is_current("version"),
            names.updated_at,
            names.valid_from,
            self.valid_to(),
            names.valid_to,
            self.scd_id(),
            names.scd_id,
        )
    }

    /// Condition that `old` and `new` have the same key.
    fn same_key(&self) -> String {
        let parts: Vec<String> = (1..=self.key.len())
            .map(|n| format!("old.dbt_unique_key_{n} = new.dbt_unique_key_{n}"))
            .collect();
        parts.join(" AND ")
    }

    /// Stages rows that are new or have changed.
    fn stage_new_versions(&self, new: &Relation) -> String {
        let before = format!(
            "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS\n{}SELECT new.* FROM new LEFT JOIN old ON {}\n    \
             WHERE old.dbt_unique_key_1 IS NULL OR ",
            quoted(&new.name),
            self.new_and_old(),
            self.same_key()
        );
        format!("EXECUTE {} || condition;", literal(&before))
    }

    /// Stages the ids of versions that end, because their row has changed or is missing.
    fn stage_ended_versions(&self, ended: &Relation) -> String {
        let (scd_id, valid_from, same) =
            (self.names.scd_id, self.names.valid_from, self.same_key());
        let missing = if self.ends_missing {
            format!(
                "SELECT old.{scd_id}, {NOW} FROM old LEFT JOIN new ON {same} WHERE new.dbt_unique_key_1 IS NULL\n    \
                 UNION ALL "
            )
        } else {
            String::new()
        };
        let before = format!(
            "CREATE TEMPORARY TABLE {} (id, finished_at) ON COMMIT DROP AS\n{}{missing}SELECT old.{scd_id}, new.{valid_from}\n    \
             FROM new JOIN old ON {same} WHERE ",
            quoted(&ended.name),
            self.new_and_old(),
        );
        format!("EXECUTE {} || condition;", literal(&before))
    }

    /// Adds columns to the table that only the new versions have.
    fn add_columns(&self, new: &Relation, except: &str) -> String {
        format!(
            "FOR changed IN SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type\n    \
             FROM pg_catalog.pg_attribute a WHERE a.attrelid = pg_catalog.to_regclass({}) AND a.attnum > 0\n        \
             AND NOT a.attisdropped{except} AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute o\n            \
             WHERE o.attrelid = pg_catalog.to_regclass({}) AND o.attname = a.attname AND NOT o.attisdropped)\nLOOP\n    \
             EXECUTE pg_catalog.format('ALTER TABLE %s ADD COLUMN %I %s', {}, changed.attname, changed.type);\nEND LOOP;",
            literal(&new.sql()),
            literal(&self.table.sql()),
            literal(&self.table.sql()),
        )
    }
}
