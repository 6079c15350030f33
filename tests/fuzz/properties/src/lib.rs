//! Properties that must hold for every input of a parser.
//!
//! One function per parser; each accepts arbitrary bytes and panics if a property does not hold.
//! The fuzzer (`make fuzz`) calls the functions with generated inputs, the tests with the corpus.

use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;
use cli::{duration, time};
use conninfo::{ConnectionTarget, Environment};
use jiff::{Timestamp, Zoned};
use pgmill_worker::{decode, params};
use queue::scan;
use schedule::{Timing, annotation};
use serde_json::value::RawValue;
use tokio_postgres::types::{IsNull, ToSql, Type};

/// A property with its name, which is also the name of its corpus.
pub type Property = (&'static str, fn(&[u8]));

/// All properties.
pub const ALL: &[Property] = &[
    ("annotations", annotations),
    ("connection_strings", connection_strings),
    ("filters", filters),
    ("job_files", job_files),
    ("parameters", parameters),
    ("results", results),
    ("sql_scanner", sql_scanner),
    ("durations", durations),
    ("timings", timings),
];

/// A comment with schedules: parsed annotations round-trip, and every error has a position in the
/// comment.
pub fn annotations(input: &[u8]) {
    let Ok(comment) = str::from_utf8(input) else { return };
    let annotated = annotation::read(comment);
    annotated.timings.iter().for_each(reads_back);
    let characters = comment.chars().count();
    for error in &annotated.errors {
        assert!(error.at <= characters, "{error:?} is outside of {characters} characters");
    }
    if let Some(last) = annotated.errors.last() {
        let (line, column) = annotation::line_and_column(comment, last.at);
        assert!(line >= 1 && column >= 1);
    }
}

/// One timing: its canonical text parses to the same timing, and its instants increase.
pub fn timings(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    match Timing::parse(text) {
        Err(error) => assert!(error.at <= text.chars().count(), "{error:?}"),
        Ok(timing) => {
            reads_back(&timing);
            let mut at = Timestamp::UNIX_EPOCH;
            let fires = std::iter::from_fn(|| {
                timing.cadence()?.next_fire(at).inspect(|next| {
                    assert!(*next > at, "{timing} steps back from {at} to {next}");
                    at = *next;
                })
            });
            assert!(fires.take(10).count() <= 10);
        }
    }
}

fn reads_back(timing: &Timing) {
    let canonical = timing.to_string();
    let read = Timing::parse(&canonical).unwrap_or_else(|error| panic!("{canonical}: {error}"));
    assert_eq!(&read, timing, "{canonical}");
    assert_eq!(read.to_string(), canonical, "the canonical text is stable");
}

/// A script: the statements are ordered slices of it, each parses as one statement on its own, and
/// appended white space changes nothing.
pub fn sql_scanner(input: &[u8]) {
    let Ok(sql) = str::from_utf8(input) else { return };
    let statements = scan::statements(sql);
    let mut end = 0;
    for statement in &statements {
        let (from, text) = (statement.offset(), statement.text());
        assert!(from >= end && !text.is_empty(), "{statement:?} after byte {end}");
        end = from + text.len();
        assert_eq!(&sql[from..end], text);
        assert!(statement.leading_words().all(|word| text.contains(word)));
        let alone: Vec<&str> = scan::statements(text).iter().map(scan::Statement::text).collect();
        assert_eq!(alone, [text], "a statement by itself");
    }
    if let Some(forbidden) = scan::forbidden(sql) {
        assert!(sql.is_char_boundary(forbidden.offset()) && !forbidden.to_string().is_empty());
    }
    let longer = format!("{sql} \n\t");
    let with_space = scan::statements(&longer);
    assert_eq!(with_space.len(), statements.len(), "white space is not a statement");
    // An open quote or comment includes the appended white space.
    let open = usize::from(!scan::can_be_followed(sql));
    let closed = statements.len().saturating_sub(open);
    let texts = |of: &[scan::Statement<'_>]| -> Vec<String> {
        of[..closed].iter().map(|statement| statement.text().to_owned()).collect()
    };
    assert_eq!(texts(&with_space), texts(&statements), "appended white space");
}

/// A connection string: no output contains a secret, neither its own nor the environment's.
pub fn connection_strings(input: &[u8]) {
    const SECRET: &str = "correct-horse-battery";
    let Ok(text) = str::from_utf8(input) else { return };
    let env =
        Environment::from_variables([("PGPASSWORD", SECRET), ("HOME", "/nowhere")], Some("me"));
    let with_secret = format!("password={SECRET} options={SECRET} {text}");
    for text in [text, &with_secret] {
        let reported = match ConnectionTarget::resolve(Some(text), &env) {
            Ok(target) => {
                let target = target.with_application_name("name").with_option("a b", "c\\ d");
                format!("{target} {target:?} {:?}", target.warnings())
            }
            Err(error) => {
                assert!(error.is_usage(), "{error}");
                format!("{error} {error:?} {:?}", error.hint())
            }
        };
        // The text may appear where the input itself contains it.
        let known = input.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(known || !reported.contains(SECRET), "{reported}");
    }
}

/// A filter of the console: surrounding white space changes nothing, the period that it covers is
/// limited, and an error comes with a hint.
pub fn filters(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    match console::check_filter(text) {
        Ok(query) => {
            let again = console::check_filter(&format!(" \t{text}\n ")).map(|it| format!("{it:?}"));
            assert_eq!(again, Ok(format!("{query:?}")), "white space around {text:?}");
            let spans = query.since.is_none_or(|it| it <= Duration::from_secs(3650 * 86_400));
            assert!(spans, "{query:?} reaches back too far");
        }
        Err((message, hint)) => assert!(!message.is_empty() && !hint.is_empty(), "{text:?}"),
    }
}

/// A job file: it is valid, or its error has a position.
pub fn job_files(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let path = Path::new("/nowhere/jobs.toml");
    if let Some(error) = pgmill::job_file_error(path, text.to_owned()) {
        assert!(!error.is_empty());
    }
}

/// Durations and times: printed values parse to the same value, and no time is before now.
pub fn durations(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    if let Ok(read) = text.parse::<duration::HumanDuration>() {
        assert_eq!(read.to_string().parse::<duration::HumanDuration>(), Ok(read), "{read}");
    }
    if let Ok(span) = time::duration(text) {
        assert!(span <= Duration::from_secs(365 * 24 * 60 * 60), "{span:?}");
    }
    if let (Ok(moment), Some(now)) = (text.parse::<time::Moment>(), now())
        && let Ok(at) = moment.resolve(&now)
    {
        assert!(at >= now.timestamp(), "{at} is before {now}");
    }
}

/// Returns a time within the hour that occurs twice in this zone.
fn now() -> Option<Zoned> {
    "2026-10-25T02:30:00+02:00[Europe/Berlin]".parse().ok()
}

/// JSON values as parameters of any type that the server requests.
pub fn parameters(input: &[u8]) {
    let Ok(json) = serde_json::from_slice::<&RawValue>(input) else { return };
    let types = [
        Type::TEXT,
        Type::INT4,
        Type::NUMERIC,
        Type::BOOL,
        Type::JSON,
        Type::JSONB,
        Type::TEXT_ARRAY,
        Type::INT4_ARRAY,
        Type::JSONB_ARRAY,
    ];
    for ty in types {
        let mut out = BytesMut::new();
        match params::Param(json).to_sql(&ty, &mut out) {
            Ok(IsNull::Yes) => assert!(out.is_empty()),
            Ok(IsNull::No) => assert!(str::from_utf8(&out).is_ok(), "{ty}"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Values as sent by a server: the first byte selects the type.
pub fn results(input: &[u8]) {
    let Some((oid, raw)) = input.split_first() else { return };
    let types = [
        Type::BOOL,
        Type::INT2,
        Type::INT4,
        Type::INT8,
        Type::OID,
        Type::FLOAT4,
        Type::FLOAT8,
        Type::TEXT,
        Type::JSON,
        Type::JSONB,
        Type::UUID,
        Type::DATE,
        Type::TIME,
        Type::TIMESTAMP,
        Type::TIMESTAMPTZ,
        Type::NUMERIC,
        Type::VOID,
        Type::BYTEA,
        Type::INT4_ARRAY,
        Type::TEXT_ARRAY,
        Type::NUMERIC_ARRAY,
        Type::TIMESTAMPTZ_ARRAY,
        Type::INT4_RANGE,
    ];
    let ty = &types[usize::from(*oid) % types.len()];
    if let Some(text) = decode::value(ty, raw) {
        // The longest numeric has 131,072 digits before the decimal point and 16,383 after it.
        assert!(text.len() <= 200_000 + raw.len() * 6, "{ty}: {} bytes", text.len());
    }
}
