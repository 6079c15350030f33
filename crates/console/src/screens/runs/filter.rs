//! Saved filters of the Runs screen as text: `state:failed job:nightly from:2026-12-01`. Each key is a
//! parameter of the screen.

use axum::extract::Query;
use axum::http::Uri;
use queue::insight::runs::RunQuery;

use crate::filter::{FilterError, invalid, terms};
use crate::screens::runs::list::RunsParams;

/// Parses a saved filter of the Runs screen.
///
/// # Errors
/// Returns message and hint if the query string is not a valid filter.
pub fn parse_saved_run_filter(query: &str) -> Result<RunQuery, (String, String)> {
    let params = params(query).ok_or_else(|| {
        ("the saved filter is invalid".to_owned(), "save the filter again".to_owned())
    })?;
    params.query().map_err(|error| (error.message, error.hint))
}

/// Returns the text of a saved filter of the Runs screen, or else its query string.
#[must_use]
pub fn saved_run_filter_text(query: &str) -> String {
    let Some(params) = params(query) else { return query.to_owned() };
    let terms = params.conditions().into_iter().filter(|(_, value)| !value.is_empty());
    let text = |(key, value): (&str, &str)| {
        let quote = if value.contains(char::is_whitespace) { "\"" } else { "" };
        format!("{key}:{quote}{value}{quote}")
    };
    terms.map(text).collect::<Vec<_>>().join(" ")
}

/// Returns the query string that a saved filter of the Runs screen with this text has.
///
/// # Errors
/// Returns message and hint if the text is not a valid filter.
pub fn saved_run_filter_query(text: &str) -> Result<String, (String, String)> {
    let query = parse(text).and_then(|params| {
        params.query()?;
        Ok(params.query_string(&params.state, ""))
    });
    query.map_err(|error| (error.message, error.hint))
}

fn params(query: &str) -> Option<RunsParams> {
    let uri: Uri = format!("/?{query}").parse().ok()?;
    Query::try_from_uri(&uri).ok().map(|Query(params)| params)
}

fn not_a_condition(term: &str) -> FilterError {
    let keys = RunsParams::default().conditions().map(|(key, _)| key).join(", ");
    let hint = format!("write KEY:VALUE with one of the keys {keys}");
    invalid(format!("\"{term}\" is not a condition on runs"), hint)
}

fn parse(text: &str) -> Result<RunsParams, FilterError> {
    let mut params = RunsParams::default();
    for term in terms(text)? {
        let (key, value) = term.split_once(':').unwrap_or(("", &term));
        let field = match key {
            "state" => &mut params.state,
            "job" => &mut params.job,
            "schedule" => &mut params.schedule,
            "from" => &mut params.from,
            "to" => &mut params.to,
            "zone" => &mut params.zone,
            _ => return Err(not_a_condition(&term)),
        };
        if value.is_empty() {
            return Err(not_a_condition(&term));
        } else if !field.is_empty() {
            return Err(invalid(format!("{key}: is given twice"), "leave out one of the two"));
        }
        value.clone_into(field);
    }
    Ok(params)
}
