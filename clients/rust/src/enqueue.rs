//! Enqueues tasks.
//!
//! `enqueue` calls `mill.submit`, which is `mill.enqueue` for programs: it also returns whether the
//! task is new. Neither function needs a privilege on any table.

use serde_json::{Map, Value, json};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use crate::error::Error;
use crate::id::TaskId;
use crate::request::{Enqueued, NewTask, TaskOptions};

const ENQUEUE: &str = "SELECT /* pgmill.enqueue */ s.id, s.created FROM mill.submit";

const ENQUEUE_MANY: &str = "SELECT /* pgmill.enqueue_many */ s FROM mill.submit_many";

/// Enqueues one task, under a deduplication key if one is given.
///
/// # Errors
/// Fails if the database refuses a value, or the connection is lost.
pub async fn enqueue(
    client: &impl GenericClient,
    task: &NewTask,
    options: &TaskOptions,
    key: Option<&str>,
) -> Result<Enqueued, Error> {
    let mut document = options.document();
    let own = [("name", task.name.as_deref()), ("key", key)];
    document
        .extend(own.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.into()))));
    let params = task.params.as_ref().map(|params| json!(params));
    let arguments: [Argument<'_>; 2] =
        [(/* statement */ &task.statement, Type::TEXT), (/* params */ &params, Type::JSONB)];
    let rows = call(client, ENQUEUE, &arguments, (options, document)).await?;
    let row = rows.first().ok_or_else(|| Error::Unexpected("no row".to_owned()))?;
    Ok(Enqueued { id: row.try_get("id")?, created: row.try_get("created")? })
}

/// Enqueues many tasks in one statement, and returns their ids in order.
///
/// # Errors
/// As [`enqueue`]. After an error, none of the tasks is enqueued.
pub async fn enqueue_many(
    client: &impl GenericClient,
    tasks: &[NewTask],
    options: &TaskOptions,
) -> Result<Vec<TaskId>, Error> {
    let statements: Vec<&str> = tasks.iter().map(|task| task.statement.as_str()).collect();
    let params: Option<Vec<Option<Value>>> = tasks
        .iter()
        .any(|task| task.params.is_some())
        .then(|| tasks.iter().map(|task| task.params.clone().map(Value::Array)).collect());
    let names: Option<Vec<Option<&str>>> = tasks
        .iter()
        .any(|task| task.name.is_some())
        .then(|| tasks.iter().map(|task| task.name.as_deref()).collect());
    let arguments: [Argument<'_>; 3] = [
        (/* statements */ &statements, Type::TEXT_ARRAY),
        (/* params */ &params, Type::JSONB_ARRAY),
        (/* names */ &names, Type::TEXT_ARRAY),
    ];
    let rows = call(client, ENQUEUE_MANY, &arguments, (options, options.document())).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

type Argument<'a> = (&'a (dyn ToSql + Sync), Type);

/// Runs `select`, which must end with the function's name, with these arguments and the document of
/// options. The key of a profile is added to the document by the server, because only a call with the
/// rights of the caller returns it.
async fn call(
    client: &impl GenericClient,
    select: &str,
    arguments: &[Argument<'_>],
    (options, document): (&TaskOptions, Map<String, Value>),
) -> Result<Vec<Row>, Error> {
    let profiles = [("profile", &options.run_as), ("target", &options.target)];
    let given = !document.is_empty() || profiles.iter().any(|(_, profile)| profile.is_some());
    let document = given.then_some(Value::Object(document));
    let mut values = arguments.to_vec();
    values.push((&document, Type::JSONB));
    let count = values.len();
    let mut expression = format!("${count}");
    for (function, profile) in profiles {
        if let Some(name) = profile {
            values.push((name, Type::TEXT));
            let key = format!("'profile', mill.{function}(${})", values.len());
            expression = format!(
                "{expression} OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object({key})"
            );
        }
    }
    let placeholders: String = (1..count).map(|n| format!("${n}, ")).collect();
    let sql = format!("{select}({placeholders}{expression}) AS s");
    Ok(client.query_typed(&sql, &values).await?)
}
