use super::*;

use cli::exit;

fn lines(text: impl AsRef<[u8]>, limit: u64) -> Lines<io::Cursor<Vec<u8>>> {
    let reader = io::Cursor::new(text.as_ref().to_vec());
    Lines { reader, name: "f.sql".to_owned(), limit, number: 0, bytes_read: 0 }
}

fn all(mut lines: Lines<io::Cursor<Vec<u8>>>) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    while let Some(line) = lines.next_statement().map_err(|error| error.to_string())? {
        found.push(line);
    }
    Ok(found)
}

#[test]
fn each_line_with_sql_is_a_task() {
    let text = "\u{feff}SELECT 1;\r\n\n   \n-- a comment\nSELECT 2 -- two\nSELECT 3";
    assert_eq!(
        all(lines(text, 100)),
        Ok(vec!["SELECT 1;".to_owned(), "SELECT 2 -- two".to_owned(), "SELECT 3".to_owned()])
    );
    assert_eq!(all(lines("", 100)), Ok(Vec::new()));
}

#[test]
fn an_invalid_line_is_reported_with_its_number() {
    for (text, expected) in [
        (&b"SELECT 1\nCOMMIT\n"[..], "f.sql:2: COMMIT is not allowed"),
        (b"SELECT 1\n\0\n", "f.sql:2: the statement has a NUL byte at offset 0"),
        (b"SELECT 1\nSELECT '\xff'\n", "f.sql: the byte at offset 17 is not valid UTF-8"),
        (
            b"SELECT 1\nSELECT 1234567890\n",
            "f.sql:2: the statement is longer than the maximum of 10 bytes",
        ),
    ] {
        let error = all(lines(text, 10)).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_line_of_exactly_the_limit_is_accepted() {
    assert_eq!(all(lines("SELECT 123\r\nSELECT 456", 10)).map(|found| found.len()), Ok(2));
}

#[test]
fn an_invalid_statement_is_refused_before_it_is_sent() {
    for (statement, expected) in [
        ("", "the statement is empty"),
        (" \n\t", "the statement is empty"),
        ("-- later", "the statement has only comments"),
        ("SELECT 1;\nCOMMIT", "line 2: COMMIT is not allowed"),
        ("COPY t FROM STDIN", "COPY FROM STDIN is not allowed"),
        ("COPY t TO STDOUT", "COPY TO STDOUT is not allowed"),
        ("SELECT '\0'", "the statement has a NUL byte at offset 8"),
    ] {
        let error = cli::Failure::from(check(statement, "").unwrap_err());
        assert!(error.to_string().starts_with(expected), "{error}");
        assert_eq!(error.code(), exit::REFUSED);
        assert_ne!(error.summary(), error.message(), "a hint");
    }
    assert!(check("CALL load()", "").is_ok());
}

#[test]
fn a_missing_file_is_a_usage_error() {
    for path in ["no/such/file.sql", "/"] {
        let error = cli::Failure::from(Source::file(Path::new(path)).unwrap_err());
        assert_eq!(error.code(), exit::USAGE, "{error}");
    }
}

#[test]
fn an_endless_source_is_read_up_to_the_limit() {
    let error = Source::File("/dev/zero".into()).statement(1000).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/dev/zero: the statement is longer than the maximum of 1000 bytes"
    );
}
