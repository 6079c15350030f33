//! `clients/description.json` agrees with the schema, with `enqueue`, with the client for Rust and
//! with the documentation. The suites of the other clients compare the clients with the description.
//! So an option that is new in the schema makes a test fail until every client has the option.

use std::collections::{BTreeMap, BTreeSet};

use pgmill_client::{NewTask, StoredOptions, TaskOptions};
use serde_json::Value;

use crate::harness::Database;
use crate::project::tidy::{files, literals, root, without_tests};

/// Flags of `enqueue` that are no option of a task.
const ONLY_FLAGS: &[(&str, &str)] = &[("--max-retries", "another form of --max-attempts")];

fn description() -> Value {
    let text = std::fs::read_to_string(root().join("clients/description.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// Returns the described parameters of a function, including its options.
fn parameters<'a>(document: &'a Value, function: &'a Value) -> Vec<&'a Value> {
    let options = if function["options"] == true { list(&document["options"]) } else { &[] };
    list(&function["parameters"]).iter().chain(options).collect()
}

/// The input arguments of a function: type, and default as text.
type Arguments = BTreeMap<String, (String, Option<String>)>;

/// Returns the arguments of the function of the schema; of several with the name, of the one with
/// the fewest arguments.
async fn arguments(database: &Database, function: &str) -> Arguments {
    let sql = "SELECT a.name, format_type(a.type, NULL), pg_get_function_arg_default(p.oid, a.n::integer)
        FROM (SELECT p.* FROM pg_proc p WHERE p.pronamespace = 'mill'::regnamespace AND 'mill.' || p.proname = $1
            ORDER BY p.pronargs LIMIT 1) AS p,
            unnest(p.proargnames, coalesce(p.proallargtypes, p.proargtypes::oid[]),
                coalesce(p.proargmodes, array_fill('i'::\"char\", ARRAY[p.pronargs])))
                WITH ORDINALITY AS a(name, type, mode, n)
        WHERE a.mode = 'i'";
    let mut found = Arguments::new();
    for row in database.rows(sql, &[&function]).await {
        let default = match row.get::<_, Option<String>>(2) {
            Some(expression) => database.value(&format!("SELECT ({expression})::text")).await,
            None => None,
        };
        found.insert(row.get(0), (row.get(1), default));
    }
    found
}

fn sql_type(parameter: &Value) -> String {
    let described = text(parameter, "type").trim_end_matches('?');
    match described {
        _ if parameter.get("by").is_some() => "uuid".to_owned(),
        // due_in is added to the current time.
        _ if parameter["sql"] == "due_at" => "timestamp with time zone".to_owned(),
        "id" => "bigint".to_owned(),
        "duration" => "interval".to_owned(),
        "json_array" | "json_object" => "jsonb".to_owned(),
        "text" | "integer" | "boolean" | "text[]" => described.to_owned(),
        name => format!("mill.{}", name.to_lowercase()),
    }
}

#[tokio::test]
async fn every_function_has_the_arguments_of_the_schema() {
    let database = Database::new().await;
    let document = description();
    let mut compared = 0;
    for function in list(&document["functions"]) {
        let name = text(function, "sql");
        let found = arguments(&database, name).await;
        if found.is_empty() {
            // A view, or a function of PostgreSQL.
            let sql = "SELECT (to_regclass($1) IS NOT NULL OR to_regproc($1) IS NOT NULL)";
            assert!(database.rows(sql, &[&name]).await[0].get::<_, bool>(0), "{name}");
            continue;
        }
        let mut described: BTreeSet<&str> = BTreeSet::new();
        for parameter in parameters(&document, function) {
            let argument = text(parameter, "sql").split('.').next().unwrap();
            described.insert(argument);
            let (found_type, _) =
                found.get(argument).unwrap_or_else(|| panic!("{name}: {parameter}"));
            if text(parameter, "sql") == argument && parameter.get("also_sql").is_none() {
                assert_eq!(*found_type, sql_type(parameter), "{name}: {parameter}");
            }
            described.extend(list(&parameter["also_sql"]).iter().filter_map(Value::as_str));
        }
        described
            .extend(function["unused"].as_object().into_iter().flatten().map(|it| it.0.as_str()));
        assert_eq!(described, found.keys().map(String::as_str).collect(), "{name}");
        compared += 1;
    }
    assert!(compared > 6, "{compared} functions");
}

#[tokio::test]
async fn every_default_is_that_of_the_schema() {
    let database = Database::new().await;
    let document = description();
    for function in list(&document["functions"]) {
        let name = text(function, "sql");
        let found = arguments(&database, name).await;
        let described: BTreeMap<&str, &str> = list(&function["parameters"])
            .iter()
            .filter_map(|it| Some((it["sql"].as_str()?, it["default"].as_str()?)))
            .collect();
        let defaults =
            found.iter().filter_map(|(name, (_, default))| Some((&**name, &**default.as_ref()?)));
        assert_eq!(defaults.collect::<BTreeMap<_, _>>(), described, "{name}");
    }
    let id = database.enqueue("SELECT 1", "").await;
    for option in list(&document["options"]) {
        let Some(default) = option["default"].as_str() else { continue };
        let name = text(option, "name");
        let sql =
            format!("SELECT to_jsonb(t)->>'{name}' FROM mill.visible_tasks t WHERE id = {id}");
        assert_eq!(database.value::<String>(&sql).await, default, "{name}");
    }
}

#[tokio::test]
async fn every_option_of_the_schema_and_every_word_of_an_enum_is_described() {
    let database = Database::new().await;
    let document = description();
    let unknown = "SELECT mill.submit('SELECT 1', options => '{\"unknown\": 1}')";
    let refused = database.client().batch_execute(unknown).await.unwrap_err();
    let hint = refused.as_db_error().unwrap().hint().unwrap();
    let accepted = hint.strip_prefix("The options are ").unwrap().trim_end_matches('.');
    let enqueue = &document["functions"][0];
    let mut described: BTreeSet<&str> = parameters(&document, enqueue)
        .into_iter()
        .filter_map(|option| text(option, "sql").strip_prefix("options."))
        .collect();
    described.extend(enqueue["unused_options"].as_object().unwrap().keys().map(String::as_str));
    assert_eq!(accepted.split(", ").collect::<BTreeSet<_>>(), described);
    let sql = "SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) FROM pg_enum e
        WHERE e.enumtypid = to_regtype($1)";
    for (name, words) in document["enums"].as_object().unwrap() {
        let snake = if name == "RunState" { "run_state".to_owned() } else { name.to_lowercase() };
        let rows = database.rows(sql, &[&format!("mill.{snake}")]).await;
        let found: Option<Vec<String>> = rows[0].get(0);
        let described: Vec<String> =
            list(words).iter().map(|it| it.as_str().unwrap().to_owned()).collect();
        assert_eq!(found, Some(described), "{name}");
    }
}

#[test]
fn every_flag_of_a_task_is_a_described_option() {
    let document = description();
    let command = enqueue::command();
    let known: BTreeSet<String> = command
        .get_arguments()
        .filter_map(clap::Arg::get_long)
        .map(|long| format!("--{long}"))
        .collect();
    let functions = list(&document["functions"]).iter().flat_map(|it| list(&it["parameters"]));
    let flags: BTreeSet<String> = functions
        .chain(list(&document["options"]))
        .filter_map(|parameter| parameter["flag"].as_str().map(str::to_owned))
        .collect();
    assert!(flags.is_subset(&known), "{:?}", flags.difference(&known));
    // The flags that are no options of a task have no heading.
    let of_task: Vec<&clap::Arg> =
        command.get_arguments().filter(|it| it.get_help_heading().is_some()).collect();
    assert!(of_task.len() > 20, "{of_task:?}");
    for argument in of_task {
        let Some(long) = argument.get_long().map(|long| format!("--{long}")) else { continue };
        let only = ONLY_FLAGS.iter().any(|(flag, _)| *flag == long);
        assert!(only || flags.contains(&long), "{long} is not in clients/description.json");
    }
}

/// Returns the names of all fields of a struct. Does not compile if a field is missing.
macro_rules! fields {
    ($name:ident { $($field:ident),+ $(,)? }) => {{
        let $name { $($field: _),+ } = $name::default();
        BTreeSet::from([$(stringify!($field)),+])
    }};
}

#[test]
fn the_client_for_rust_has_every_option() {
    let document = description();
    let mut found = fields!(TaskOptions {
        queue,
        priority,
        due,
        max_attempts,
        retry_interval,
        backoff,
        jitter,
        timeout,
        mode,
        at_most_once,
        external,
        group,
        concurrency_key,
        concurrency,
        run_as,
        target,
        explain,
        stored,
    });
    assert!(found.remove("due") && found.remove("stored"));
    found.extend(["due_at", "due_in"]);
    let stored = serde_json::to_value(StoredOptions::default()).unwrap();
    found.extend(stored.as_object().unwrap().keys().map(String::as_str));
    let described = list(&document["options"]).iter().map(|option| text(option, "name"));
    assert_eq!(found, described.collect());
    let record = document["records"]["NewTask"].as_object().unwrap();
    assert_eq!(
        fields!(NewTask { statement, params, name }),
        record.keys().map(String::as_str).collect()
    );
}

#[test]
fn the_client_for_rust_has_every_function_record_and_statement() {
    let document = description();
    let sources = files(&["clients/rust/src"], &[".rs"]);
    let all: String = sources.iter().map(|(_, text)| without_tests(text)).collect();
    let found: BTreeSet<String> = sources
        .iter()
        .flat_map(|(_, text)| literals(without_tests(text)))
        .map(|(_, literal)| literal.replace("\\\n", ""))
        .filter(|literal| literal.contains(" /* pgmill."))
        .collect();
    for function in list(&document["functions"]) {
        let name = text(function, "name");
        assert!(all.contains(&format!("pub async fn {name}(")), "{name}");
        if let Some(statement) = function["statement"].as_str() {
            assert!(found.contains(statement), "{statement}\nis not in {found:#?}");
        }
    }
    for (name, fields) in document["records"].as_object().unwrap() {
        let (_, body) = all.split_once(&format!("pub struct {name} {{")).unwrap();
        let (body, _) = body.split_once("\n}").unwrap();
        let public = body.lines().filter_map(|line| line.trim().strip_prefix("pub "));
        let found: Vec<&str> = public
            .filter_map(|line| line.split(':').next())
            .map(|field| field.trim_start_matches("r#"))
            .collect();
        let described: BTreeSet<&str> =
            fields.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), described, "{name}");
    }
    for name in document["exceptions"].as_object().unwrap().keys() {
        assert!(all.contains(&format!("    {name}(tokio_postgres::Error)")), "{name}");
    }
}

#[test]
fn the_documentation_has_every_function_and_every_option() {
    let document = description();
    let page = std::fs::read_to_string(root().join("docs/clients.md")).unwrap();
    for function in list(&document["functions"]) {
        let row = format!(
            "| `{}` | `{}` | {} |",
            text(function, "name"),
            text(function, "role"),
            text(function, "text")
        );
        assert!(page.contains(&row), "docs/clients.md has no row\n{row}");
    }
    for (name, exception) in document["exceptions"].as_object().unwrap() {
        let states: Vec<&str> =
            list(&exception["sqlstates"]).iter().filter_map(Value::as_str).collect();
        let row = format!("| `{name}` | {} | {} |", states.join(", "), text(exception, "text"));
        assert!(page.contains(&row), "docs/clients.md has no row\n{row}");
    }
    let options = std::fs::read_to_string(root().join("docs/enqueue.md")).unwrap();
    for flag in list(&document["options"]).iter().filter_map(|option| option["flag"].as_str()) {
        assert!(options.contains(&format!("`{flag}`")), "docs/enqueue.md does not describe {flag}");
    }
}
