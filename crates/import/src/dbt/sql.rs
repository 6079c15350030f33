//! Pieces of SQL: quoted names and texts, and statements that several materializations need.
//!
//! Names and texts of a project are quoted. SQL that the project itself contains (models, hooks,
//! index expressions, data types) is copied as it is, as dbt does.

use super::manifest::{Index, Node};

/// Maximum length of a name in PostgreSQL, in bytes.
const MAX_NAME_BYTES: usize = 63;

/// Quotes a name.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes a text with dollar signs, so that its contents stay readable and need no escapes.
pub(super) fn literal(text: &str) -> String {
    let mut n = 0;
    loop {
        let tag = if n == 0 { "$dbt$".to_owned() } else { format!("$dbt{n}$") };
        // The text could end with the beginning of the tag.
        if format!("{text}{tag}").find(&tag) == Some(text.len()) {
            return format!("{tag}{text}{tag}");
        }
        n += 1;
    }
}

/// An anonymous block with these declarations and statements.
pub(super) fn block(declarations: &str, body: &str) -> String {
    let declare = if declarations.is_empty() { "" } else { "\nDECLARE " };
    format!("DO {};", literal(&format!("{declare}{declarations}\nBEGIN\n{body}\nEND ")))
}

/// A statement of a block that runs SQL.
pub(super) fn execute(sql: &str) -> String {
    format!("EXECUTE {};", literal(sql))
}

/// The schema and the name of a table or view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Relation {
    pub(super) schema: String,
    pub(super) name: String,
}

impl Relation {
    /// Returns the relation of a node. The project decides for each part of the name whether dbt
    /// quotes it; PostgreSQL folds parts without quotes to lower case.
    ///
    /// # Errors
    /// Returns the reason if the name is empty or longer than PostgreSQL allows.
    pub(super) fn of(node: &Node) -> Result<Self, String> {
        let rendered = node.relation_name.as_deref().unwrap_or_default();
        let part = |name: &str, is_quoted: bool| {
            if is_quoted || rendered.is_empty() { name.to_owned() } else { name.to_lowercase() }
        };
        let is_quoted = rendered.ends_with(&format!("\"{}\"", node.alias));
        let name = part(&node.alias, is_quoted);
        let schema = part(&node.schema, rendered.contains(&format!("\"{}\".", node.schema)));
        for part in [&schema, &name] {
            if part.is_empty() || part.len() > MAX_NAME_BYTES {
                return Err(format!(
                    "the name \"{part}\" has {} bytes; PostgreSQL allows 1 to {MAX_NAME_BYTES}",
                    part.len()
                ));
            }
        }
        Ok(Self { schema, name })
    }

    /// Returns the quoted name with its schema.
    pub(super) fn sql(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.name))
    }

    /// Returns the relation that is built under another name before it replaces this one.
    pub(super) fn intermediate(&self) -> Self {
        self.with_suffix("__dbt_tmp")
    }

    /// Returns the name under which the replaced relation exists until it is dropped.
    pub(super) fn backup(&self) -> Self {
        self.with_suffix("__dbt_backup")
    }

    /// Appends a suffix; shortens the name so that PostgreSQL keeps the suffix.
    fn with_suffix(&self, suffix: &str) -> Self {
        let mut end = self.name.len().min(MAX_NAME_BYTES - suffix.len());
        while !self.name.is_char_boundary(end) {
            end -= 1;
        }
        Self { schema: self.schema.clone(), name: format!("{}{suffix}", &self.name[..end]) }
    }

    /// Returns an expression for the kind of the relation, as in `pg_class.relkind`; null if it does
    /// not exist.
    pub(super) fn kind(&self) -> String {
        format!(
            "(SELECT c.relkind FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass({}))",
            literal(&self.sql())
        )
    }

    /// Drops the relations with these names, whatever their kinds are, and everything that depends
    /// on them.
    pub(super) fn drop_statements(relations: &[&Self]) -> String {
        let names: Vec<String> = relations.iter().map(|it| literal(&it.sql())).collect();
        format!(
            "FOR leftover IN SELECT n.name, c.relkind FROM pg_catalog.unnest(ARRAY[{}]) AS n (name)\n    \
             JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(n.name)\nLOOP\n    \
             EXECUTE 'DROP ' || CASE leftover.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW'\n        \
             ELSE 'TABLE' END || ' IF EXISTS ' || leftover.name || ' CASCADE';\nEND LOOP;",
            names.join(", ")
        )
    }

    /// As [`Self::drop_statements`], in a block of its own.
    pub(super) fn drop_block(relations: &[&Self]) -> String {
        block("leftover record;", &Self::drop_statements(relations))
    }

    /// Renames the existing relation to its backup, and the intermediate one to this name.
    pub(super) fn swap_statements(&self) -> String {
        format!(
            "IF pg_catalog.to_regclass({}) IS NOT NULL THEN\n    ALTER TABLE {} RENAME TO {};\nEND IF;\n\
             ALTER TABLE {} RENAME TO {};",
            literal(&self.sql()),
            self.sql(),
            quoted(&self.backup().name),
            self.intermediate().sql(),
            quoted(&self.name)
        )
    }
}

/// Returns the statements that create the indexes of a table.
pub(super) fn index_statements(table: &Relation, indexes: &[Index]) -> Vec<String> {
    let one = |index: &Index| {
        let unique = if index.unique { "UNIQUE " } else { "" };
        let method =
            index.method.as_ref().map(|it| format!(" USING {}", quoted(it))).unwrap_or_default();
        format!("CREATE {unique}INDEX ON {}{method} ({});", table.sql(), index.columns.join(", "))
    };
    indexes.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_its_literal() {
        for text in ["", "a", "$dbt$", "$dbt", "$", "$$", "x$dbt$$dbt1", "$dbt1$ $dbt$", "'\"\\"] {
            let sql = literal(text);
            let end = sql[1..].find('$').map(|at| at + 2).unwrap();
            let tag = &sql[..end];
            assert_eq!(sql[end..].find(tag), Some(text.len()), "{sql}");
            assert_eq!(&sql[end..end + text.len()], text);
        }
    }

    #[test]
    fn a_long_name_keeps_its_suffix() {
        let name = "ä".repeat(31);
        let table = Relation { schema: "s".to_owned(), name };
        let backup = table.backup().name;
        assert!(backup.len() <= MAX_NAME_BYTES && backup.ends_with("__dbt_backup"), "{backup}");
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
