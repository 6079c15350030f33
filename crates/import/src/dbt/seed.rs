//! SQL of seeds: a table from a CSV file of the project, with types as dbt infers them.

use std::path::{Path, PathBuf};

use queue::scan;

use super::attributes::{comments, grants_only};
use super::manifest::{Manifest, Node};
use super::sql::{Relation, block, index_statements, literal, quoted};

/// Maximum size of a CSV file. The rows become a part of the job, of which the database keeps the
/// last 50 versions.
const MAX_BYTES: u64 = 1024 * 1024;

/// Rows per INSERT.
const ROWS_PER_STATEMENT: usize = 1000;

/// Type of a column, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Integer,
    Float,
    Date,
    Timestamp,
    IsoTimestamp,
    Boolean,
    Text,
}

impl Kind {
    fn sql(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Float => "float8",
            Self::Date => "date",
            Self::Timestamp | Self::IsoTimestamp => "timestamp without time zone",
            Self::Boolean => "boolean",
            Self::Text => "text",
        }
    }
}

/// Rows of a file: the header, and the fields of each row.
struct Rows {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Returns the statements that create the table of a seed, or empty it, and insert the rows.
///
/// # Errors
/// Returns the reason if the file is missing, too large, or not one that dbt reads.
pub(super) fn seed(
    node: &Node,
    table: &Relation,
    file: &Path,
    [before, after]: [Vec<String>; 2],
    full_refresh: bool,
) -> Result<Vec<String>, String> {
    let Rows { header, rows } = read(file, node)?;
    let kinds: Vec<Kind> = (0..header.len())
        .map(|n| kind_of(&header[n], rows.iter().map(|row| row[n].as_str()), node))
        .collect::<Result<_, _>>()?;
    let name = |name: &String| {
        if node.settings.quote_columns == Some(false) { name.clone() } else { quoted(name) }
    };
    let names: Vec<String> = header.iter().map(name).collect();
    let columns: Vec<String> = header
        .iter()
        .zip(&kinds)
        .zip(&names)
        .map(|((column, kind), name)| {
            let given = node.settings.column_types.get(column).map(String::as_str);
            format!("{name} {}", given.unwrap_or(kind.sql()))
        })
        .collect();
    let mut statements = before;
    statements.push(prepare(node, table, &columns, full_refresh));
    for chunk in rows.chunks(ROWS_PER_STATEMENT) {
        let values: Vec<String> = chunk.iter().map(|row| row_values(row, &kinds)).collect();
        statements.push(format!(
            "INSERT INTO {} ({}) VALUES\n{};",
            table.sql(),
            names.join(", "),
            values.join(",\n")
        ));
    }
    statements.extend(grants_only(node, table));
    statements.extend(comments(node, table, "TABLE"));
    statements.extend(after);
    Ok(statements)
}

/// Creates the table or empties it.
fn prepare(node: &Node, table: &Relation, columns: &[String], full_refresh: bool) -> String {
    let name = table.sql();
    let mut create = vec![format!("CREATE TABLE {name} (\n    {}\n);", columns.join(",\n    "))];
    create.extend(index_statements(table, &node.settings.indexes));
    let create = create.join("\n");
    let existing = if node.is_rebuilt(full_refresh) {
        format!("DROP TABLE {name} CASCADE;\n{create}")
    } else {
        format!("TRUNCATE {name};")
    };
    let wrong = literal(&format!("{name} is not a table"));
    let body = format!(
        "kind := {};\nIF kind IS NULL THEN\n{create}\nELSIF kind IN ('r', 'p') THEN\n{existing}\nELSE\n\
         RAISE EXCEPTION USING ERRCODE = 'MT900', MESSAGE = {wrong};\nEND IF;",
        table.kind()
    );
    block("kind \"char\";", &body)
}

/// Returns the path of the CSV file.
///
/// # Errors
/// Returns the reason if the manifest names a file outside of the project.
pub(super) fn file(manifest: &Manifest, node: &Node, project: &Path) -> Result<PathBuf, String> {
    let path = Path::new(&node.original_file_path);
    let is_inside = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let is_plain = |name: &str| !name.contains(['/', '\\']) && name != ".." && !name.is_empty();
    if !is_inside || !is_plain(&node.package_name) {
        return Err(format!("{} is outside of the project", node.original_file_path));
    }
    let is_own = manifest.metadata.project_name.as_deref() == Some(node.package_name.as_str());
    let folder = if is_own {
        project.to_owned()
    } else {
        project.join("dbt_packages").join(&node.package_name)
    };
    Ok(folder.join(path))
}

fn read(file: &Path, node: &Node) -> Result<Rows, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let size = std::fs::metadata(file).map_err(|error| wrong(&error))?.len();
    if size > MAX_BYTES {
        return Err(format!(
            "{} has {size} bytes; a task loads up to {MAX_BYTES}: load the table with dbt seed, and exclude the node",
            file.display()
        ));
    }
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
    let text = scan::without_byte_order_mark(&text);
    let delimiter = match node.settings.delimiter.as_deref().unwrap_or(",").as_bytes() {
        [byte] => *byte,
        _ => return Err("the delimiter must have one byte".to_owned()),
    };
    let mut reader =
        csv::ReaderBuilder::new().delimiter(delimiter).flexible(true).from_reader(text.as_bytes());
    let header: Vec<String> =
        reader.headers().map_err(|error| wrong(&error))?.iter().map(str::to_owned).collect();
    for (n, name) in header.iter().enumerate() {
        if name.trim().is_empty() || header[..n].contains(name) {
            return Err(wrong(&format!("column {} has no name of its own", n + 1)));
        }
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| wrong(&error))?;
        let mut row: Vec<String> = record.iter().map(str::to_owned).collect();
        if row.len() > header.len() {
            let line = record.position().map_or(0, csv::Position::line);
            return Err(wrong(&format!("line {line} has {} fields", row.len())));
        }
        row.resize(header.len(), String::new());
        rows.push(row);
    }
    Ok(Rows { header, rows })
}

fn is_null(text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || text.eq_ignore_ascii_case("null")
}

/// Returns the type that dbt gives to a column.
///
/// # Errors
/// Returns the reason if dbt would read the values as numbers in a notation for people.
fn kind_of<'t>(
    name: &str,
    values: impl Iterator<Item = &'t str> + Clone,
    node: &Node,
) -> Result<Kind, String> {
    if node.settings.column_types.contains_key(name) {
        return Ok(Kind::Text);
    }
    let values = values.filter(|text| !is_null(text));
    let all = |test: fn(&str) -> bool| values.clone().all(test);
    if all(is_number) {
        let is_whole = values.clone().all(is_whole);
        return Ok(if is_whole { Kind::Integer } else { Kind::Float });
    }
    if all(|text| is_number(text) || is_decorated_number(text)) {
        return Err(format!(
            "column \"{name}\" has numbers with signs or groups; declare its type in column_types"
        ));
    }
    Ok(if all(is_date) {
        Kind::Date
    } else if all(is_timestamp) {
        Kind::Timestamp
    } else if all(is_iso_timestamp) {
        Kind::IsoTimestamp
    } else if all(|text| {
        text.trim().eq_ignore_ascii_case("true") || text.trim().eq_ignore_ascii_case("false")
    }) {
        Kind::Boolean
    } else {
        Kind::Text
    })
}

/// Splits a plain number into the digits before and after the point and the exponent.
fn number_parts(text: &str) -> Option<(&str, &str, i64)> {
    let text = text.trim();
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty());
    is_number.then_some((whole, fraction, exponent))
}

fn is_number(text: &str) -> bool {
    number_parts(text).is_some()
}

/// Whether a number has no digits after the point once trailing zeros are removed.
fn is_whole(text: &str) -> bool {
    number_parts(text).is_some_and(|(_, fraction, exponent)| {
        let digits = fraction.trim_end_matches('0').len();
        i64::try_from(digits).is_ok_and(|digits| digits <= exponent)
    })
}

/// Whether the text is a number with a currency sign, a percent sign or grouped digits.
fn is_decorated_number(text: &str) -> bool {
    let bare: String = text
        .trim()
        .chars()
        .filter(|c| !matches!(c, ',' | '%' | '$' | '€' | '£' | '¥' | '(' | ')' | ' '))
        .collect();
    let word = bare.trim_start_matches(['+', '-']).to_lowercase();
    is_number(&bare) || ["nan", "inf", "infinity"].contains(&word.as_str())
}

/// Whether the text has the form `2026-12-01`; month and day may have one digit.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.trim().split('-').collect();
    let [year, month, day] = parts[..] else { return false };
    let number = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
        let digits = part.bytes().all(|byte| byte.is_ascii_digit());
        (digits && lengths.contains(&part.len())).then(|| part.parse::<i16>().ok()).flatten()
    };
    let (Some(year), Some(month), Some(day)) =
        (number(year, 4..=4), number(month, 1..=2), number(day, 1..=2))
    else {
        return false;
    };
    let (Ok(month), Ok(day)) = (i8::try_from(month), i8::try_from(day)) else { return false };
    jiff::civil::Date::new(year, month, day).is_ok()
}

/// Whether the text has the form `2026-12-01 10:30:00`.
fn is_timestamp(text: &str) -> bool {
    let Some((date, time)) = text.trim().split_once(' ') else { return false };
    let parts: Vec<&str> = time.split(':').collect();
    let below = |part: &str, limit: u8| {
        (1..=2).contains(&part.len()) && part.parse::<u8>().is_ok_and(|value| value < limit)
    };
    let [hour, minute, second] = parts[..] else { return false };
    is_date(date) && below(hour, 24) && below(minute, 60) && below(second, 62)
}

/// Whether the text is a date and a time in the notation of ISO 8601.
fn is_iso_timestamp(text: &str) -> bool {
    let text = text.trim();
    text.contains('T')
        && (text.parse::<jiff::civil::DateTime>().is_ok()
            || text.parse::<jiff::Timestamp>().is_ok())
}

fn row_values(row: &[String], kinds: &[Kind]) -> String {
    let value = |(text, kind): (&String, &Kind)| {
        if is_null(text) {
            return "NULL".to_owned();
        }
        let text = if *kind == Kind::Text { text } else { text.trim() };
        let quoted = format!("'{}'", text.replace('\'', "''"));
        match kind {
            // A whole number such as 1.0 is not a literal of the type integer.
            Kind::Integer if text.parse::<i64>().is_err() => format!("{quoted}::numeric"),
            // dbt passes a time with an offset as such; the session's time zone then applies.
            Kind::IsoTimestamp if text.parse::<jiff::Timestamp>().is_ok() => {
                format!("{quoted}::timestamptz")
            }
            _ => quoted,
        }
    };
    let values: Vec<String> = row.iter().zip(kinds).map(value).collect();
    format!("({})", values.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_types_that_dbt_infers() {
        let node: Node = serde_json::from_value(serde_json::json!({
            "unique_id": "seed.p.s", "name": "s", "resource_type": "seed", "package_name": "p",
            "original_file_path": "seeds/s.csv", "config": {},
        }))
        .unwrap();
        let kind = |values: &[&str]| kind_of("c", values.iter().copied(), &node);
        for (values, expected) in [
            (&["1", "", "-2", "NULL"][..], Kind::Integer),
            (&["1.0", "2e3", "1.5e1"], Kind::Integer),
            (&["", "null"], Kind::Integer),
            (&["1.5", "2"], Kind::Float),
            (&["2026-01-31", "2026-2-1"], Kind::Date),
            (&["2026-02-30"], Kind::Text),
            (&["2026-01-31 10:00:00"], Kind::Timestamp),
            (&["2026-01-31T10:00:00"], Kind::IsoTimestamp),
            (&["2026-01-31T10:00:00Z"], Kind::IsoTimestamp),
            (&["true", "False", ""], Kind::Boolean),
            (&["1", "true"], Kind::Text),
            (&["01a"], Kind::Text),
        ] {
            assert_eq!(kind(values), Ok(expected), "{values:?}");
        }
        for decorated in ["1,000", "$5", "10%", "nan"] {
            assert!(kind(&[decorated]).is_err(), "{decorated}");
        }
    }
}
