//! The manifest of a dbt project: the parts of it that the import reads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cli::Failure;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Versions of the schema of a manifest that this module reads.
const VERSIONS: [&str; 1] = ["v12"];

/// A compiled project.
#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    pub(super) metadata: Metadata,
    #[serde(default)]
    pub(super) nodes: BTreeMap<String, Node>,
    #[serde(default)]
    pub(super) sources: BTreeMap<String, Source>,
    #[serde(default)]
    pub(super) macros: BTreeMap<String, Macro>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) unit_tests: BTreeMap<String, serde::de::IgnoredAny>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) functions: BTreeMap<String, serde::de::IgnoredAny>,
}

/// A macro, and the macros that it calls.
#[derive(Debug, Deserialize)]
pub(super) struct Macro {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) package_name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(default, deserialize_with = "or_default")]
    depends_on: DependsOn,
}

/// The origin of a manifest.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    pub(super) dbt_schema_version: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) dbt_version: String,
    pub(super) project_name: Option<String>,
    pub(super) adapter_type: Option<String>,
}

/// A source: a table that the project reads and does not build.
#[derive(Debug, Deserialize)]
pub(super) struct Source {
    pub(super) source_name: String,
    pub(super) name: String,
    pub(super) package_name: String,
}

/// A model, a seed, a snapshot, a test, an operation or an analysis.
#[derive(Debug, Deserialize)]
pub(super) struct Node {
    pub(super) unique_id: String,
    pub(super) name: String,
    pub(super) resource_type: String,
    pub(super) package_name: String,
    pub(super) original_file_path: String,
    pub(super) database: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) schema: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) alias: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) fqn: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) tags: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) description: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) columns: ColumnList,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) constraints: Vec<Constraint>,
    pub(super) relation_name: Option<String>,
    pub(super) language: Option<String>,
    pub(super) compiled_code: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) depends_on: DependsOn,
    /// Position among the hooks of the same kind, for operations.
    pub(super) index: Option<i64>,
    pub(super) version: Option<Value>,
    pub(super) group: Option<String>,
    pub(super) test_metadata: Option<serde::de::IgnoredAny>,
    pub(super) config: Map<String, Value>,
    #[serde(skip)]
    pub(super) settings: Settings,
}

/// The nodes and macros that a node uses.
#[derive(Debug, Default, Deserialize)]
pub(super) struct DependsOn {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) nodes: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) macros: Vec<String>,
}

/// The columns that a project documents, in the order of the manifest.
#[derive(Debug, Default)]
pub(super) struct ColumnList(pub(super) Vec<Column>);

/// A documented column.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Column {
    pub(super) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) description: String,
    pub(super) data_type: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) constraints: Vec<Constraint>,
    pub(super) quote: Option<bool>,
}

/// A constraint of a column or a model.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Constraint {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) name: Option<String>,
    pub(super) expression: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) columns: Vec<String>,
    pub(super) to: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) to_columns: Vec<String>,
}

/// The settings of a node on which its SQL depends.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Settings {
    pub(super) materialized: Option<String>,
    #[serde(rename = "pre-hook", deserialize_with = "or_default")]
    pub(super) pre_hook: Vec<Hook>,
    #[serde(rename = "post-hook", deserialize_with = "or_default")]
    pub(super) post_hook: Vec<Hook>,
    #[serde(deserialize_with = "or_default")]
    pub(super) grants: BTreeMap<String, Texts>,
    #[serde(deserialize_with = "or_default")]
    pub(super) persist_docs: PersistDocs,
    #[serde(deserialize_with = "or_default")]
    pub(super) contract: Contract,
    #[serde(deserialize_with = "or_default")]
    pub(super) indexes: Vec<Index>,
    pub(super) full_refresh: Option<bool>,
    pub(super) unlogged: Option<bool>,
    pub(super) sql_header: Option<String>,
    // Incremental models and snapshots.
    #[serde(deserialize_with = "or_default")]
    pub(super) unique_key: Texts,
    pub(super) incremental_strategy: Option<String>,
    pub(super) on_schema_change: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) incremental_predicates: Texts,
    #[serde(deserialize_with = "or_default")]
    pub(super) predicates: Texts,
    #[serde(deserialize_with = "or_default")]
    pub(super) merge_update_columns: Texts,
    #[serde(deserialize_with = "or_default")]
    pub(super) merge_exclude_columns: Texts,
    // Snapshots.
    pub(super) strategy: Option<String>,
    pub(super) updated_at: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) check_cols: Texts,
    pub(super) hard_deletes: Option<String>,
    pub(super) invalidate_hard_deletes: Option<bool>,
    pub(super) dbt_valid_to_current: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) snapshot_meta_column_names: BTreeMap<String, Option<String>>,
    // Seeds.
    #[serde(deserialize_with = "or_default")]
    pub(super) column_types: BTreeMap<String, String>,
    pub(super) quote_columns: Option<bool>,
    pub(super) delimiter: Option<String>,
    // Tests.
    pub(super) severity: Option<String>,
    pub(super) store_failures: Option<bool>,
    pub(super) store_failures_as: Option<String>,
    pub(super) limit: Option<u64>,
    pub(super) fail_calc: Option<String>,
    pub(super) warn_if: Option<String>,
    pub(super) error_if: Option<String>,
}

/// A hook of a node. Its text is a template.
#[derive(Debug, Deserialize)]
pub(super) struct Hook {
    pub(super) sql: String,
    #[serde(default = "yes")]
    pub(super) transaction: bool,
}

/// Which comments to store in the database.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PersistDocs {
    pub(super) relation: bool,
    pub(super) columns: bool,
}

/// Whether the columns of a model are declared.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Contract {
    pub(super) enforced: bool,
}

/// An index of a table.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Index {
    pub(super) columns: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) unique: bool,
    #[serde(rename = "type")]
    pub(super) method: Option<String>,
}

/// A text or a list of texts.
#[derive(Debug, Default)]
pub(super) struct Texts(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            One(String),
            Many(Vec<String>),
        }
        Ok(match Either::deserialize(source)? {
            Either::One(text) => Self(vec![text]),
            Either::Many(texts) => Self(texts),
        })
    }
}

impl<'de> Deserialize<'de> for ColumnList {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct Columns;
        impl<'de> serde::de::Visitor<'de> for Columns {
            type Value = ColumnList;

            fn expecting(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                text.write_str("an object with a column for each key")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<ColumnList, A::Error> {
                let mut columns = Vec::new();
                while let Some((_, column)) = map.next_entry::<serde::de::IgnoredAny, Column>()? {
                    columns.push(column);
                }
                Ok(ColumnList(columns))
            }
        }
        source.deserialize_map(Columns)
    }
}

const fn yes() -> bool {
    true
}

/// Reads JSON null as the default.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    source: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(source)?.unwrap_or_default())
}

impl Manifest {
    /// Reads a manifest and checks that it describes a project for PostgreSQL.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is not a manifest, or has an unknown version.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let place = path.display();
        let bytes =
            std::fs::read(path).map_err(|error| Failure::usage(format!("{place}: {error}")))?;
        // The version comes first: other versions may have another shape.
        #[derive(Deserialize)]
        struct Head {
            metadata: Metadata,
        }
        let not_manifest = |error: &serde_json::Error| {
            Failure::usage(format!("{place}: not a manifest of dbt: {error}"))
                .hint("`dbt compile` writes target/manifest.json.")
        };
        let head: Head = serde_json::from_slice(&bytes).map_err(|error| not_manifest(&error))?;
        let url = &head.metadata.dbt_schema_version;
        let version = url.strip_prefix("https://schemas.getdbt.com/dbt/manifest/");
        let version = version.and_then(|rest| rest.strip_suffix(".json")).unwrap_or(url);
        if !VERSIONS.contains(&version) {
            let known = VERSIONS.join(", ");
            let message =
                format!("{place}: manifest version {version} is unknown; pgmill reads: {known}");
            return Err(Failure::usage(message).hint("dbt 1.8 and later write version v12."));
        }
        match head.metadata.adapter_type.as_deref() {
            Some("postgres") => {}
            other => {
                let adapter = other.unwrap_or("unknown");
                let message =
                    format!("{place}: the project is for {adapter}; pgmill imports postgres");
                return Err(Failure::usage(message));
            }
        }
        let mut manifest: Self =
            serde_json::from_slice(&bytes).map_err(|error| not_manifest(&error))?;
        for node in manifest.nodes.values_mut() {
            let settings = serde_json::from_value(Value::Object(node.config.clone()));
            node.settings = settings.map_err(|error| {
                Failure::usage(format!("{place}: config of {}: {error}", node.unique_id))
            })?;
        }
        Ok(manifest)
    }

    /// Whether the SQL of the node depends on whether its table exists: whether the node, or a macro
    /// that it calls, calls `is_incremental`.
    pub(super) fn asks_if_incremental(&self, node: &Node) -> bool {
        let mut open: Vec<&str> = node.depends_on.macros.iter().map(String::as_str).collect();
        let mut seen: BTreeSet<&str> = open.iter().copied().collect();
        while let Some(name) = open.pop() {
            if name == "macro.dbt.is_incremental" {
                return true;
            }
            let called = self.macros.get(name).map(|it| it.depends_on.macros.as_slice());
            for next in called.unwrap_or_default() {
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        false
    }
}

impl Node {
    /// Whether the node is a model that other nodes contain instead of reading it.
    pub(super) fn is_ephemeral(&self) -> bool {
        self.resource_type == "model" && self.settings.materialized.as_deref() == Some("ephemeral")
    }

    /// Name with the version, as it appears in selectors: `orders.v2`.
    pub(super) fn versioned_name(&self) -> String {
        match &self.version {
            Some(Value::String(version)) => format!("{}.v{version}", self.name),
            Some(Value::Number(version)) => format!("{}.v{version}", self.name),
            _ => self.name.clone(),
        }
    }

    /// Whether each run rebuilds the relation of the node.
    pub(super) fn is_rebuilt(&self, full_refresh: bool) -> bool {
        self.settings.full_refresh.unwrap_or(full_refresh)
    }
}
