//! Messages and exit codes of `enqueue` in cases that need no server.

#![expect(clippy::unwrap_used, reason = "a test that cannot start has failed")]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// Runs `enqueue` without a server: nothing listens on port 1.
fn enqueue(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_enqueue"))
        .args(arguments)
        .env_clear()
        .envs([("PGHOST", "127.0.0.1"), ("PGPORT", "1"), ("PGUSER", "nobody")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may exit before it reads its input.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Runs `enqueue`; expects an exit code, an empty standard output, and a text on standard error.
fn refuses(arguments: &[&str], code: i32, expected: &str) {
    let output = enqueue(arguments, b"");
    let error_text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error_text}");
    assert_eq!(output.stdout, b"", "{arguments:?}");
    assert!(error_text.contains(expected), "{arguments:?}: {error_text}");
    assert!(!error_text.contains("panicked"), "{arguments:?}: {error_text}");
}

#[test]
fn help_shows_examples_before_options_and_every_exit_code() {
    let output = enqueue(&["--help"], b"");
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.find("Examples:").unwrap() < help.find("Options:").unwrap());
    for code in ["    0  ", "    1  ", "    2  ", "    3  ", "    5  ", "   75  ", "  124  "] {
        assert!(help.contains(&format!("\n{code}")), "{code}");
    }
}

#[test]
fn an_invalid_command_line_exits_with_2_and_names_the_expected_form() {
    for (arguments, expected) in [
        (&[][..], "expected SQL, --file FILE, --job NAME, or - for standard input"),
        (&["--proirity", "high", "x"], "'--priority'"),
        (&["--priority", "urgent", "x"], "low, normal, high, critical, reserved"),
        (&["--max-attempts", "-1", "x"], "-1 is not in 1..=10000"),
        (&["--max-attempts", "99999999999", "x"], "is not in 1..=10000"),
        (&["--max-retries", "-1", "x"], "-1 is not in 0..10000"),
        (&["--attempts", "2", "--max-retries", "1", "x"], "cannot be used with"),
        (&["--timeout", "-5s", "x"], "must not be negative"),
        (&["--timeout", "0s", "x"], "must be greater than zero"),
        (&["--in", "5", "x"], "missing unit"),
        (&["--in", "99999 days", "x"], "must be at most 365 days"),
        (&["--at", "tomorrow", "x"], "tomorrow 03:00"),
        (&["--at", "2h", "x"], "--in \"2h\""),
        (&["--at", "03:00", "--in", "2h", "x"], "cannot be used with"),
        (&["--param", "text", "x"], "'\"text\"'"),
        (&["--at-most-once", "x"], "--mode autocommit"),
        (&["--lines", "x"], "standard input or --file"),
        (&["--lines", "--key", "k"], "cannot be used with"),
        (&["--lines", "--wait"], "cannot be used with"),
        (&["--file", "a", "b", "--wait"], "one task"),
        (&["--file", "no/such/file"], "could not read no/such/file"),
        (&["--database-url", "host=h sslmod=x", "SELECT 1"], "sslmode"),
    ] {
        refuses(arguments, 2, expected);
    }
}

#[test]
fn an_invalid_statement_exits_with_5_before_any_connection() {
    for (statement, expected) in [
        ("", "the statement is empty"),
        (" \n ", "the statement is empty"),
        ("BEGIN; SELECT 1", "BEGIN is not allowed"),
        ("COPY t FROM STDIN", "no client sends the data"),
    ] {
        refuses(&[statement], 5, expected);
    }
}

#[test]
fn an_unreachable_database_exits_with_75() {
    refuses(&["SELECT 1"], 75, "is the server running there");
    let output = enqueue(&["--lines"], b"SELECT 1\n");
    assert_eq!(output.status.code(), Some(75));
}

#[test]
fn a_password_on_the_command_line_is_warned_about_and_not_shown() {
    let conninfo = "postgresql://u:hunter2@127.0.0.1:1/d";
    let output = enqueue(&["--database-url", conninfo, "SELECT 1"], b"");
    let error_text = String::from_utf8(output.stderr).unwrap();
    assert!(error_text.contains("PGPASSFILE") && !error_text.contains("hunter2"), "{error_text}");
}
