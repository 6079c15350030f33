use proptest::prelude::*;

use super::*;

fn texts(sql: &str) -> Vec<&str> {
    statements(sql).iter().map(Statement::text).collect()
}

#[test]
fn a_script_is_split_where_the_server_splits_it() {
    let cases: &[(&str, &[&str])] = &[
        ("", &[]),
        (" \t\r\n", &[]),
        (";;;", &[]),
        ("-- nothing", &[]),
        ("/* nothing */;/* more */", &[]),
        ("SELECT 1", &["SELECT 1"]),
        ("SELECT 1;", &["SELECT 1"]),
        (" SELECT 1 ; SELECT 2 ", &["SELECT 1", "SELECT 2"]),
        ("SELECT 1;;SELECT 2", &["SELECT 1", "SELECT 2"]),
        ("SELECT 1 -- a; b\n; SELECT 2", &["SELECT 1", "SELECT 2"]),
        ("SELECT 1 -- a\r; SELECT 2", &["SELECT 1", "SELECT 2"]),
        ("/*+ hint; */ SELECT 1", &["/*+ hint; */ SELECT 1"]),
        ("SELECT 1 /* after */; SELECT 2", &["SELECT 1", "SELECT 2"]),
        ("SELECT/* a /* ; */ ; */1; SELECT 2", &["SELECT/* a /* ; */ ; */1", "SELECT 2"]),
        ("SELECT 1 /*/ ; */; SELECT 2", &["SELECT 1", "SELECT 2"]),
        ("SELECT 1 +/**/2; SELECT 2", &["SELECT 1 +/**/2", "SELECT 2"]),
        ("SELECT 4-/2; SELECT 2", &["SELECT 4-/2", "SELECT 2"]),
        ("SELECT ';'; SELECT 2", &["SELECT ';'", "SELECT 2"]),
        ("SELECT ''';'; SELECT 2", &["SELECT ''';'", "SELECT 2"]),
        (r"SELECT '\'; SELECT 2", &[r"SELECT '\'", "SELECT 2"]),
        (r"SELECT E'\';'; SELECT 2", &[r"SELECT E'\';'", "SELECT 2"]),
        (r"SELECT e'\\'; SELECT 2", &[r"SELECT e'\\'", "SELECT 2"]),
        (r"SELECT E'a'';'; SELECT 2", &[r"SELECT E'a'';'", "SELECT 2"]),
        ("SELECT E'a' -- c\n '\\';'; SELECT 2", &["SELECT E'a' -- c\n '\\';'", "SELECT 2"]),
        (r"SELECT E'a' '\'; SELECT 2", &[r"SELECT E'a' '\'", "SELECT 2"]),
        (r"SELECT nameE'\'; SELECT 2", &[r"SELECT nameE'\'", "SELECT 2"]),
        (r"SELECT éE'\'; SELECT 2", &[r"SELECT éE'\'", "SELECT 2"]),
        (r"SELECT U&'\0061;\'; SELECT 2", &[r"SELECT U&'\0061;\'", "SELECT 2"]),
        (r"SELECT B'1;', X'1;'; SELECT 2", &[r"SELECT B'1;', X'1;'", "SELECT 2"]),
        (r#"SELECT ";"";", U&";\"; SELECT 2"#, &[r#"SELECT ";"";", U&";\""#, "SELECT 2"]),
        ("SELECT $$;'$$; SELECT 2", &["SELECT $$;'$$", "SELECT 2"]),
        ("SELECT $a$;$b$;$a$; SELECT 2", &["SELECT $a$;$b$;$a$", "SELECT 2"]),
        ("SELECT $a$;$A$;$$;$a$; SELECT 2", &["SELECT $a$;$A$;$$;$a$", "SELECT 2"]),
        ("SELECT $é1$;$é1$; SELECT 2", &["SELECT $é1$;$é1$", "SELECT 2"]),
        ("SELECT a$b$c; SELECT $b$", &["SELECT a$b$c", "SELECT $b$"]),
        ("SELECT é$$; SELECT 2", &["SELECT é$$", "SELECT 2"]),
        ("SELECT $1; SELECT $2", &["SELECT $1", "SELECT $2"]),
        ("SELECT $1$$;$$; SELECT 2", &["SELECT $1$$;$$", "SELECT 2"]),
        ("SELECT $1a$; SELECT $a", &["SELECT $1a$", "SELECT $a"]),
        ("SELECT (1;2); SELECT 2", &["SELECT (1;2)", "SELECT 2"]),
        ("SELECT 1); SELECT 2", &["SELECT 1)", "SELECT 2"]),
        ("SELECT ';; SELECT 2", &["SELECT ';; SELECT 2"]),
        ("SELECT E'\\", &["SELECT E'\\"]),
        ("SELECT \"; SELECT 2", &["SELECT \"; SELECT 2"]),
        ("SELECT $a$; SELECT $a", &["SELECT $a$; SELECT $a"]),
        ("SELECT 1; /* ; /* */ SELECT 2", &["SELECT 1", "/* ; /* */ SELECT 2"]),
        ("SELECT (; SELECT 2", &["SELECT (; SELECT 2"]),
        ("BEGIN; SELECT 1; END; SELECT 2", &["BEGIN", "SELECT 1", "END", "SELECT 2"]),
        (
            "DO $$ BEGIN COMMIT; END $$ LANGUAGE plpgsql; SELECT 2",
            &["DO $$ BEGIN COMMIT; END $$ LANGUAGE plpgsql", "SELECT 2"],
        ),
        (
            "CREATE RULE r AS ON INSERT TO t DO (DELETE FROM a; DELETE FROM b); SELECT 2",
            &["CREATE RULE r AS ON INSERT TO t DO (DELETE FROM a; DELETE FROM b)", "SELECT 2"],
        ),
    ];
    for (sql, expected) in cases {
        assert_eq!(texts(sql), *expected, "in {sql:?}");
    }
}

#[test]
fn the_body_of_a_routine_stays_in_one_piece() {
    let whole = [
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END",
        "create or replace procedure s.p(a int) begin/* ; */atomic delete from t; end",
        "CREATE FUNCTION f(x int) RETURNS int LANGUAGE sql IMMUTABLE BEGIN ATOMIC
           SELECT CASE WHEN x > 0 THEN 1 ELSE CASE x WHEN 0 THEN 2 END END; SELECT 2;
         END",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1 end; SELECT 2 AS case; END",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT t.end FROM t; SELECT (2; END); END",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT begin atomic FROM t; END",
        "CREATE FUNCTION f() RETURNS void BEGIN ATOMIC END",
        "CREATE FUNCTION f() RETURNS void BEGIN ATOMIC ;; END",
        "CREATE FUNCTION begin(begin int) RETURNS begin BEGIN ATOMIC SELECT 1; END",
        "CREATE FUNCTION f() RETURNS int AS 'begin; end' LANGUAGE sql",
        "CREATE FUNCTION begin() RETURNS int RETURN 1",
        "CREATE FUNCTION f() RETURNS int RETURN CASE WHEN true THEN 1 END",
    ];
    for sql in whole {
        let script = format!("{sql}; SELECT 'next'");
        assert_eq!(texts(&script), [sql, "SELECT 'next'"]);
    }
    let cut = [
        ("CREATE TABLE begin (a int); CREATE TABLE atomic (a int)", 2),
        ("CREATE FUNCTION f() \"begin\" ATOMIC SELECT 1; SELECT 2", 2),
        ("CREATE FUNCTION f() BEGIN SELECT 1; END", 2),
        ("CREATE VIEW begin atomic AS SELECT 1; END", 2),
        ("CREATE OR FUNCTION f() BEGIN ATOMIC SELECT 1; END", 2),
        ("CREATE FUNCTION f() BEGIN ATOMIC SELECT 1; SELECT 2", 1),
    ];
    for (sql, count) in cut {
        assert_eq!(statements(sql).len(), count, "in {sql:?}");
    }
}

#[test]
fn transaction_control_is_found_at_the_start_of_any_statement() {
    let cases = [
        ("BEGIN", "BEGIN", 0),
        ("begin isolation level serializable", "BEGIN", 0),
        ("SELECT 1; Commit", "COMMIT", 10),
        ("SELECT 1;/* ; */\n -- x\n END", "END", 24),
        ("é; ROLLBACK TO s", "ROLLBACK", 4),
        ("ABORT;", "ABORT", 0),
        ("SAVEPOINT s", "SAVEPOINT", 0),
        ("RELEASE s", "RELEASE", 0),
        ("COMMIT PREPARED 'x'", "COMMIT", 0),
        ("START /**/ transaction", "START TRANSACTION", 0),
        ("PREPARE TRANSACTION 'x'", "PREPARE TRANSACTION", 0),
        ("PREPARE TRANSACTION U&'x'", "PREPARE TRANSACTION", 0),
        ("CREATE FUNCTION f() BEGIN ATOMIC SELECT 1; END; END", "END", 48),
        ("SELECT '\\'; COMMIT; --'", "COMMIT", 12),
        ("SELECT E'a' '\\'; COMMIT; --'", "COMMIT", 17),
        ("SELECT a$b$; COMMIT; --$b$", "COMMIT", 13),
    ];
    for (sql, word, offset) in cases {
        assert_eq!(
            forbidden(sql),
            Some(Forbidden::TransactionControl { word, offset }),
            "in {sql:?}"
        );
    }
}

#[test]
fn copy_through_the_client_is_found() {
    let from = [
        "COPY t FROM STDIN",
        "copy/* a */t(a, b)--x\nFrom/* ; */\nstdin with (format csv)",
        "COPY BINARY s.t FROM STDIN",
        "COPY t FROM STDIN DELIMITERS ',' NULL ''",
        "COPY s.from FROM STDIN WHERE a > 1",
        "COPY \"from\" FROM STDIN",
        "COPY t FROM STDOUT",
    ];
    for sql in from {
        assert_eq!(forbidden(sql), Some(Forbidden::CopyFromStdin { offset: 0 }), "in {sql:?}");
    }
    let to = [
        "COPY t TO STDOUT",
        "COPY (SELECT 1 FROM t) TO STDOUT (FORMAT binary)",
        "COPY(SELECT 'TO', (1))TO stdout",
        "COPY BINARY t TO STDOUT WITH DELIMITER '|'",
        "COPY t TO STDIN",
    ];
    for sql in to {
        let script = format!("SELECT 1; {sql}");
        assert_eq!(forbidden(&script), Some(Forbidden::CopyToStdout { offset: 10 }), "in {sql:?}");
    }
}

#[test]
fn text_that_only_looks_forbidden_passes() {
    let fine = [
        "SELECT 'COMMIT'; SELECT $$; COMMIT $$",
        "SELECT 1 /* ; COMMIT */ -- ; COMMIT",
        "\"begin\"; \"COMMIT\"",
        "beginning; commit_all; endé; end$",
        "PREPARE transaction AS SELECT 1",
        "PREPARE transaction (int) AS SELECT $1",
        "PREPARE p AS SELECT 1; START",
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "CALL commit(); DO $$ BEGIN COMMIT; END $$",
        "COPY t FROM '/tmp/f'; COPY t TO 'stdout'; COPY t FROM PROGRAM 'cat'",
        "COPY t FROM 'f' WHERE a IS DISTINCT FROM stdin",
        "COPY stdin FROM 'f'; COPY (SELECT a FROM stdin) TO 'f'",
        "COPY t (a, \"FROM STDIN\") TO 'f' (NULL 'TO STDOUT')",
        "COPY t FROM \"stdin\"",
        "COPY t FROM; STDIN",
        "SELECT 'COPY t FROM STDIN'; EXPLAIN SELECT 1",
        "CREATE FUNCTION f() RETURNS void BEGIN ATOMIC DELETE FROM t; END",
        "CREATE RULE r AS ON INSERT TO t DO (NOTIFY a; COMMIT)",
        "",
        ";",
    ];
    for sql in fine {
        assert_eq!(forbidden(sql), None, "in {sql:?}");
    }
}

#[test]
fn a_statement_has_leading_words_and_an_offset() {
    let sql = "SELECT 1;\n  /* new */ CREATE --x\n table tä (a int);";
    let second = statements(sql)[1];
    assert_eq!(second.leading_words().collect::<Vec<_>>(), ["CREATE", "table", "tä"]);
    assert!(sql[second.offset()..].starts_with("/* new */"));
    assert_eq!(statements("(SELECT 1)")[0].leading_words().next(), None);
}

/// Quoted text with any content that its quoting allows.
fn quoted() -> impl Strategy<Value = String> {
    let soup = "[-;'\"\\\\$a/*é\n() ]{0,12}";
    prop_oneof![
        soup.prop_map(|text| format!("'{}'", text.replace('\'', "''"))),
        soup.prop_map(|text| format!("\"{}\"", text.replace('"', "\"\""))),
        soup.prop_map(|text| format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))),
        soup.prop_map(|text| format!("E';'\n'{}'", text.replace(['\\', '\''], "\\;"))),
        soup.prop_map(|text| format!("U&'{}'", text.replace('\'', "''"))),
        soup.prop_map(|text| format!("$${}$$", text.replace('$', ""))),
        soup.prop_map(|text| format!("$b1${text};$b1$")),
        soup.prop_map(|text| format!("--{}\n", text.replace('\n', ";"))),
        soup.prop_map(|text| {
            let text = text.replace(['*', '/'], ";");
            format!("/*{text}/*{text}*/{text}*/")
        }),
        soup.prop_map(|text| format!("({})", text.replace(|c: char| c != ';', ""))),
    ]
}

/// Text composed of the tokens that matter to the scanner, in any order.
fn soup() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "'",
        "\"",
        "$",
        "$$",
        "$a$",
        "E'",
        "\\",
        "--",
        "/*",
        "*/",
        "\n",
        " ",
        ";",
        "(",
        ")",
        ".",
        "CREATE ",
        "FUNCTION ",
        "BEGIN ",
        "ATOMIC ",
        "END",
        "COPY ",
        "TO ",
        "STDOUT",
        "a",
        "1",
        "é",
        "🐘",
    ]);
    prop::collection::vec(pieces, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_text_makes_the_scanner_panic(sql in prop_oneof![any::<String>(), soup()]) {
        let mut end = 0;
        for statement in statements(&sql) {
            prop_assert!(statement.offset() >= end);
            end = statement.offset() + statement.text().len();
            prop_assert_eq!(&sql[statement.offset()..end], statement.text());
            prop_assert!(!statement.text().is_empty());
            // A statement by itself is scanned as one statement, so the result does not depend on
            // the text before it.
            prop_assert_eq!(texts(statement.text()), [statement.text()]);
        }
        if let Some(found) = forbidden(&sql) {
            prop_assert!(found.offset() < sql.len());
        }
    }

    #[test]
    fn a_semicolon_in_quotes_never_splits(pieces in prop::collection::vec(quoted(), 1..6)) {
        let first = format!("SELECT {} x", pieces.join(" , "));
        let script = format!("{first}; COMMIT; SELECT 2");
        prop_assert_eq!(texts(&script), [first.as_str(), "COMMIT", "SELECT 2"]);
        prop_assert_eq!(forbidden(&script).map(|found| found.offset()), Some(first.len() + 2));
    }
}

#[test]
fn only_closed_text_can_be_followed() {
    let closed =
        ["SELECT 1", "SELECT 1;", "SELECT 'a' -- b", "/* a */", "", "SELECT $a$;$a$; SELECT (1)"];
    for sql in closed {
        assert!(can_be_followed(sql), "{sql}");
    }
    let open =
        ["SELECT 'a", "SELECT $a$", "SELECT (1", "SELECT \"a", "SELECT 1 /* a", "SELECT E'\\'"];
    for sql in open {
        assert!(!can_be_followed(sql), "{sql}");
    }
}

#[test]
fn a_call_with_one_parameter_has_a_name() {
    let cases = [
        ("CALL send_invoice($1)", Some("send_invoice")),
        (" /* new */ call Billing . Send_Invoice ( $1 ) ; ", Some("billing.send_invoice")),
        ("CALL send_invoice($1);;", Some("send_invoice")),
        ("CALL \"Send\"($1)", None),
        ("CALL send_invoice($1, $2)", None),
        ("CALL send_invoice($2)", None),
        ("CALL send_invoice($1::jsonb)", None),
        ("CALL send_invoice(($1))", None),
        ("CALL send_invoice()", None),
        ("CALL send_invoice", None),
        ("CALL a.b.($1)", None),
        ("CALL ($1)", None),
        ("CALL send_invoice($1) x", None),
        ("CALL send_invoice($1", None),
        ("CALL a($1); CALL b($1)", None),
        ("SELECT send_invoice($1)", None),
        ("", None),
    ];
    for (sql, name) in cases {
        assert_eq!(call_with_one_parameter(sql).as_deref(), name, "{sql}");
    }
}
