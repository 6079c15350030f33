//! Makes the schedules match the comments of procedures.
//!
//! One statement reads the comments. The desired schedules are computed from them without the
//! database. The changes are made in the caller's transaction, which the caller may roll back for a
//! dry run. While a comment contains an error, the schedules that it declared before stay as they
//! are.

use std::collections::{BTreeMap, BTreeSet};

use conninfo::GenericClient;
use queue::QueueError;
use queue::row::{execute, from_row, rows};
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::Transaction;

use crate::annotation::{self, Annotations, line_and_column};
use crate::declare::{self, PutResult, declared};
use crate::enums::DeclaredIn;
use crate::queries::AnnotationError;

/// Only one reconcile runs at a time, so that each sees the result of the one before.
const LOCK: &str = "SELECT /* schedule.sync_lock */ mill.lock('schedule sync')";

/// Reads the procedures with comments, and whether their owners are trusted. Trusted are roles that
/// may declare schedules by a call, and roles that an operator has listed. If every role were
/// trusted, any role could have its code run under the task login.
const PROCEDURES: &str = "SELECT /* schedule.procedures */ n.nspname || '.' || p.proname AS name, d.description AS comment,
    CASE p.prokind WHEN 'p' THEN format('CALL %I.%I()', n.nspname, p.proname)
        ELSE format('SELECT %I.%I()', n.nspname, p.proname) END AS statement,
    p.prokind IN ('f', 'p') AND p.prorettype <> 'trigger'::regtype AND p.prorettype <> 'event_trigger'::regtype
        AS callable,
    p.pronargs > p.pronargdefaults OR p.prokind = 'p' AND coalesce('o' = ANY (p.proargmodes), false)
        AS needs_arguments,
    o.rolsuper OR pg_has_role(o.oid, 'mill_operator', 'USAGE') OR pg_has_role(o.oid, 'mill_owner', 'USAGE')
        OR EXISTS (SELECT FROM mill.settings s CROSS JOIN LATERAL unnest(s.declaring_roles) AS d(role)
            WHERE to_regrole(quote_ident(d.role)) IS NOT NULL AND pg_has_role(o.oid, quote_ident(d.role)::regrole, 'USAGE'))
        AS trusted,
    o.rolname::text AS owner
FROM pg_description d JOIN pg_proc p ON p.oid = d.objoid JOIN pg_namespace n ON n.oid = p.pronamespace
    JOIN pg_roles o ON o.oid = p.proowner
WHERE d.classoid = 'pg_proc'::regclass AND d.objsubid = 0 AND d.description ~ '@[A-Za-z_]+'
    AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'mill')
ORDER BY 1, p.pronargs, p.oid";

const DELETE_DECLARATION_ERRORS: &str =
    "DELETE /* schedule.delete_declaration_errors */ FROM mill.schedule_declaration_errors";

const INSERT_DECLARATION_ERRORS: &str = "INSERT /* schedule.insert_declaration_errors */ INTO mill.schedule_declaration_errors (declared_as, place, message, hint)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) ON CONFLICT DO NOTHING";

/// A procedure or function with annotations in its comment.
#[derive(Clone, Debug)]
pub struct Procedure {
    /// Schema and name of the procedure, unquoted.
    pub name: String,
    /// The comment.
    pub comment: String,
    /// The statement that calls the procedure.
    pub statement: String,
    /// Whether a statement can call it, which is not so for aggregates and trigger functions.
    pub callable: bool,
    /// Whether it has an argument without a default.
    pub needs_arguments: bool,
    /// Whether its owner may declare schedules.
    pub trusted: bool,
    /// The owner.
    pub owner: String,
}

from_row! { Procedure { name, comment, statement, callable, needs_arguments, trusted, owner } }

/// A schedule that a comment declares.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredSchedule {
    /// The procedure that has the comment.
    pub declared_as: String,
    /// The definition, in the format of [`declare::put`].
    pub definition: Value,
}

/// The schedules that follow from the comments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredState {
    /// The complete set of schedules that comments declare.
    pub desired: Vec<DesiredSchedule>,
    /// Errors in comments.
    pub declaration_errors: Vec<AnnotationError>,
    /// Procedures whose comments contain an error, so that it is unknown which schedules they
    /// declare.
    pub unread: BTreeSet<String>,
}

/// Result of a reconcile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reconciled {
    /// New schedules.
    pub new: Vec<String>,
    /// Changed schedules.
    pub changed: Vec<String>,
    /// Number of unchanged schedules.
    pub unchanged: usize,
    /// Schedules whose declaration was removed.
    pub removed: Vec<String>,
    /// Errors in comments.
    pub declaration_errors: Vec<AnnotationError>,
}

/// Returns the procedures and functions with annotations.
pub async fn procedures(client: &impl GenericClient) -> Result<Vec<Procedure>, QueueError> {
    rows(client, PROCEDURES, &[]).await
}

/// Computes the desired schedules from the comments.
#[must_use]
pub fn read(procedures: &[Procedure]) -> DesiredState {
    let mut reading = DesiredState::default();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for procedure in procedures {
        *seen.entry(&procedure.name).or_default() += 1;
    }
    for procedure in procedures {
        let annotated = annotation::read(&procedure.comment);
        let declaration_error = |at: usize, message: &str, hint: Option<String>| {
            let (line, column) = line_and_column(&procedure.comment, at);
            AnnotationError {
                declared_as: procedure.name.clone(),
                place: format!("{line}:{column}"),
                message: message.to_owned(),
                hint,
            }
        };
        for found in &annotated.errors {
            reading.declaration_errors.push(declaration_error(
                found.at,
                &found.message,
                found.hint.clone(),
            ));
        }
        if !annotated.errors.is_empty() {
            reading.unread.insert(procedure.name.clone());
        }
        if annotated.timings.is_empty() {
            continue;
        }
        if let Some((message, hint)) = rejection(procedure, seen[procedure.name.as_str()]) {
            reading.declaration_errors.push(declaration_error(0, &message, Some(hint)));
            reading.unread.remove(&procedure.name);
        } else if !annotated.shared_error {
            reading.desired.extend(desired(procedure, &annotated));
        }
    }
    reading
}

/// Returns the reason why a procedure cannot be scheduled, and a hint; `None` if it can.
fn rejection(procedure: &Procedure, of_that_name: usize) -> Option<(String, String)> {
    let owned = |message: &str, hint: &str| Some((message.to_owned(), hint.to_owned()));
    if !procedure.callable {
        owned(
            "trigger functions, aggregates and window functions cannot be scheduled",
            "annotate a procedure or a plain function",
        )
    } else if procedure.needs_arguments {
        owned(
            "requires arguments",
            "give the arguments defaults, or declare a schedule whose statement passes the arguments: mill.set_schedule",
        )
    } else if of_that_name > 1 {
        owned(
            "another procedure of this name has annotations too, so a call without arguments is ambiguous",
            "annotate only one of these procedures",
        )
    } else if !procedure.trusted {
        Some((
            format!("owner {} may not declare schedules", procedure.owner),
            format!(
                "change its owner, or: UPDATE mill.settings SET declaring_roles = array_append(declaring_roles, '{}')",
                procedure.owner
            ),
        ))
    } else {
        None
    }
}

fn desired(procedure: &Procedure, annotated: &Annotations) -> Vec<DesiredSchedule> {
    let Annotations { timings, title, settings, task, text, .. } = annotated;
    let texts = [title.as_deref().unwrap_or_default(), text].into_iter();
    let description = texts.filter(|it| !it.is_empty()).collect::<Vec<_>>().join(": ");
    let one = |timing: &crate::Timing| {
        let mut definition = settings.clone();
        let mut set = |key: &str, value: Value| definition.insert(key.to_owned(), value);
        set("name", format!("{}/{}", procedure.name, timing.key()).into());
        set("timing", timing.to_string().into());
        set("statement", procedure.statement.as_str().into());
        set("task", task.clone().into());
        if !description.is_empty() {
            set("description", description.as_str().into());
        }
        let (declared_as, definition) = (procedure.name.clone(), definition.into());
        DesiredSchedule { declared_as, definition }
    };
    timings.iter().map(one).collect()
}

/// Waits until no other session reconciles, and keeps others from it until the end of the transaction.
/// [`reconcile`] calls this, too: a caller that calls it before learns whether another session is the
/// reason for a wait.
///
/// # Errors
/// SQLSTATE 55P03: another session takes longer than the `lock_timeout`.
pub async fn lock(transaction: &Transaction<'_>) -> Result<(), QueueError> {
    Ok(transaction.batch_execute(LOCK).await?)
}

/// Changes the schedules to match the comments, in the caller's transaction.
///
/// # Errors
/// A schedule that the database refuses becomes an error in the result.
pub async fn reconcile(transaction: &mut Transaction<'_>) -> Result<Reconciled, QueueError> {
    lock(transaction).await?;
    let DesiredState { desired, declaration_errors, unread } =
        read(&procedures(transaction).await?);
    let mut done = Reconciled { declaration_errors, ..Reconciled::default() };
    let mut kept = Vec::new();
    for one in desired {
        let name = one.definition["name"].as_str().unwrap_or_default().to_owned();
        let step = transaction.savepoint("one").await?;
        let put = declare::put(&step, &one.definition, DeclaredIn::Comment, Some(&one.declared_as));
        match put.await {
            Ok(put) => {
                step.commit().await?;
                kept.push(name.clone());
                match put {
                    PutResult::New => done.new.push(name),
                    PutResult::Changed => done.changed.push(name),
                    PutResult::Unchanged => done.unchanged += 1,
                }
            }
            Err(error) if error.refused() => {
                step.rollback().await?;
                done.declaration_errors.push(AnnotationError {
                    declared_as: one.declared_as,
                    place: "1:1".to_owned(),
                    message: error.to_string(),
                    hint: error.hint(),
                });
            }
            Err(error) => return Err(error),
        }
    }
    let gone: Vec<String> = declared(transaction)
        .await?
        .into_iter()
        .filter(|there| there.declared_in == DeclaredIn::Comment && !kept.contains(&there.name))
        .filter(|there| there.declared_as.as_ref().is_none_or(|by| !unread.contains(by)))
        .map(|there| there.name)
        .collect();
    done.removed = declare::remove(transaction, &gone).await?;
    store_declaration_errors(transaction, &done.declaration_errors).await?;
    Ok(done)
}

async fn store_declaration_errors(
    transaction: &Transaction<'_>,
    declaration_errors: &[AnnotationError],
) -> Result<(), QueueError> {
    transaction.batch_execute(DELETE_DECLARATION_ERRORS).await?;
    let column =
        |of: fn(&AnnotationError) -> &str| declaration_errors.iter().map(of).collect::<Vec<_>>();
    let hints: Vec<Option<&str>> = declaration_errors.iter().map(|it| it.hint.as_deref()).collect();
    execute(
        transaction,
        INSERT_DECLARATION_ERRORS,
        &[
            &column(|it| &it.declared_as),
            &column(|it| &it.place),
            &column(|it| &it.message),
            /* hint */ &hints,
        ],
    )
    .await
}
