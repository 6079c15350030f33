//! Reads CSV files.

use queue::scan;

/// An error in a line of a file: the line, counted from 1, and the message.
pub type LineError = (usize, String);

/// Splits CSV (RFC 4180) into records, each with its line. Skips empty lines and a byte order mark.
///
/// # Errors
/// Fails for a quote inside of a field without quotes, and for a quote that is not closed.
pub fn records(text: &str) -> Result<Vec<(usize, Vec<String>)>, LineError> {
    let (mut records, mut fields, mut field) = (Vec::new(), Vec::new(), String::new());
    let (mut line, mut began, mut quoted) = (1, 1, false);
    // Spreadsheets write semicolons where the comma is the decimal separator.
    let delimiter = text.chars().find(|it| [',', ';', '\n'].contains(it)).filter(|it| *it == ';');
    let delimiter = delimiter.unwrap_or(',');
    let mut chars = scan::without_byte_order_mark(text).chars().peekable();
    loop {
        let next = chars.next();
        match next {
            Some('"') if quoted && chars.next_if_eq(&'"').is_some() => field.push('"'),
            Some('"') if quoted => quoted = false,
            Some(other) if quoted => {
                line += usize::from(other == '\n');
                field.push(other);
            }
            Some('"') if field.trim().is_empty() => {
                field.clear();
                quoted = true;
            }
            Some('"') => return Err((line, "a quote inside of a field without quotes".to_owned())),
            Some(other) if other == delimiter => fields.push(std::mem::take(&mut field)),
            Some('\r') => {}
            Some('\n') | None => {
                if quoted {
                    return Err((began, "a quote is not closed".to_owned()));
                }
                fields.push(std::mem::take(&mut field));
                let record = std::mem::take(&mut fields);
                if record.iter().any(|field| !field.trim().is_empty()) {
                    records.push((began, record));
                }
                line += 1;
                began = line;
            }
            Some(other) => field.push(other),
        }
        if next.is_none() {
            return Ok(records);
        }
    }
}
