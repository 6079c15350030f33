//! Any text in the database is displayed as plain text: the console escapes markup, and the
//! command-line programs escape terminal control sequences.

use std::collections::BTreeSet;

use html5ever::tendril::TendrilSink;
use html5ever::{ParseOpts, parse_document};
use markup5ever_rcdom::{Handle, NodeData, RcDom};
use serde_json::{Value, json};
use terminal::is_invisible;

use crate::console::console_read_only::every_request;
use crate::console::seed::seed;
use crate::harness::console::Console;
use crate::harness::terminal::Terminal;
use crate::harness::{Database, Program, amount};
use crate::runs::run::job;

/// Maximum size of a page that shows a text of a megabyte.
const MAX_BYTES: usize = 500_000;

/// Hostile texts, short enough for a name.
const CORPUS: &[&str] = &[
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "{{7*7}}${7*7}<%= 7*7 %>{% raw %}",
    "javascript:alert(1)",
    "</title><svg onload=alert(1)>",
    "--><script>alert(1)</script><!--",
    "]]></style></script></textarea></pre></noscript><iframe src=//evil.example>",
    "&lt;script&gt;&#60;b&#62;&amp;amp;&",
    "\u{1b}[2J\u{1b}]0;owned\u{7}\u{1b}[31mred\u{9b}31m",
    "\u{1}\u{2}\u{3}\u{4}\u{5}\u{6}\u{7}\u{8}\u{9}\u{b}\u{c}\u{e}\u{f}\u{10}\u{11}\u{12}\u{13}\u{14}\u{15}\
     \u{16}\u{17}\u{18}\u{19}\u{1a}\u{1c}\u{1d}\u{1e}\u{1f}\u{7f}\u{80}\u{85}",
    "\u{202e}txt.exe\u{202d}\u{2066}\u{2067}\u{2068}\u{2069}\u{200e}\u{200f}\u{61c}",
    "zero\u{200b}width\u{feff}\u{2060}\u{ad}\u{e0041}\u{2028}\u{2029}",
    "می\u{200c}خواهم שלום 👩\u{200d}💻",
    "Z\u{351}\u{36b}\u{343}\u{32a}\u{302}\u{36b}\u{33d}\u{34f}\u{334}\u{319}\u{324}\u{31e}\u{349}\u{35a}\u{32f}a",
    "\u{fffd}\u{fffe}\u{ffff}\u{10ffff}",
    "\\u0000 \\x00 %00 \\0",
    "'",
    "\"",
    "`",
    "100%25 a+b%20c &x=y#z?q",
    "line\nfeed\r\ncarriage\rreturn\ttab",
    " ",
    "../../../etc/passwd",
    "'; DROP TABLE mill.tasks; --",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
     aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// A text with something of most kinds, so short that every column accepts it that accepts one of the
/// texts above.
const MIXED: &str = "a\u{202e}<b>\"'&\u{200b}\u{2066}";

/// Columns that accept none of the hostile texts, with the reason.
const CLOSED: &[(&str, &str)] = &[
    ("job_tasks.queue", QUEUE_NAME),
    ("queues.name", QUEUE_NAME),
    ("run_tasks.queue", QUEUE_NAME),
    ("tasks.queue", QUEUE_NAME),
    ("job_tasks.run_as", PROFILE_NAME),
    ("profiles.name", PROFILE_NAME),
    ("run_tasks.run_as", PROFILE_NAME),
    ("tasks.run_as", PROFILE_NAME),
    ("target_checks.name", PROFILE_NAME),
    ("targets.name", PROFILE_NAME),
    ("subscriptions.queue", QUEUE_NAME),
    ("subscriptions.task_queue", QUEUE_NAME),
    ("subscriptions.destination", PROFILE_NAME),
    ("subscriptions.run_as", PROFILE_NAME),
];
const QUEUE_NAME: &str = "letters, digits and some signs";
const PROFILE_NAME: &str = "letters, digits and underscores";

/// Columns that accept no text of a megabyte: they hold names of roles, functions and objects.
const SHORT: &[&str] = &[
    "audit.login",
    "audit.role",
    "audit.actor",
    "audit.action",
    "audit.subject",
    "audit.application",
];

/// Every text column of the schema, without partitions.
const COLUMNS: &str = "
SELECT c.relname::text, a.attname::text, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid
WHERE c.relnamespace = 'mill'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND coalesce(nullif(t.typbasetype, 0), t.oid) IN ('text'::regtype, 'name'::regtype, 'text[]'::regtype,
        'json'::regtype, 'jsonb'::regtype)
ORDER BY 1, 2";

/// A column, and the number of texts that it accepted.
struct Column {
    table: String,
    name: String,
    kind: String,
    taken: usize,
}

/// Replaces every string in the value.
fn replaced(value: &Value, text: &str) -> Value {
    match value {
        Value::String(_) => json!(text),
        Value::Array(values) => values.iter().map(|it| replaced(it, text)).collect(),
        Value::Object(pairs) => {
            pairs.iter().map(|(key, it)| (key.clone(), replaced(it, text))).collect()
        }
        other => other.clone(),
    }
}

/// Writes the text into every row of the column, or into one row if the values must differ. Keys
/// and triggers are disabled; values refused by a type or a constraint stay unchanged. Returns
/// whether the text was accepted.
async fn put(database: &Database, column: &Column, text: &str) -> bool {
    let Column { table, name, kind, .. } = column;
    if kind.starts_with("json") {
        let rows = database
            .rows(
                &format!(
                    "SELECT ctid::text, {name}::jsonb FROM mill.{table} WHERE {name} IS NOT NULL"
                ),
                &[],
            )
            .await;
        let mut taken = !rows.is_empty();
        for row in rows {
            let set = format!("UPDATE mill.{table} SET {name} = $2 WHERE ctid = $1::text::tid");
            let value = replaced(&row.get(1), text);
            let row: &str = row.get(0);
            taken &= database.client().execute(&set, &[&row, &value]).await.is_ok();
        }
        return taken;
    }
    let value = if kind == "text[]" { "ARRAY[$1::text]" } else { "$1::text" };
    let one = format!("(SELECT min(ctid) FROM mill.{table} WHERE {name} IS NOT NULL)");
    for only in ["true", &format!("{name} IS NOT NULL"), &format!("ctid = {one}")] {
        let set = format!("UPDATE mill.{table} SET {name} = {value} WHERE {only}");
        if database.client().execute(&set, &[&text]).await.is_ok_and(|rows| rows > 0) {
            return true;
        }
    }
    false
}

async fn put_everywhere(database: &Database, columns: &mut [Column], text: &str) {
    database.execute("SET session_replication_role = replica").await;
    for column in columns {
        column.taken += usize::from(put(database, column, text).await);
    }
    database.execute("SET session_replication_role = origin").await;
    let name: String = text.chars().filter(|it| *it != '\0').collect();
    database.rows("SELECT set_config('application_name', $1, false)", &[&name]).await;
}

async fn columns(database: &Database) -> Vec<Column> {
    let rows = database.rows(COLUMNS, &[]).await;
    let column = |row: &tokio_postgres::Row| Column {
        table: row.get(0),
        name: row.get(1),
        kind: row.get(2),
        taken: 0,
    };
    rows.iter().map(column).collect()
}

/// Parsed page: names of elements and attributes, and faults.
#[derive(Default)]
struct Seen {
    names: BTreeSet<String>,
    faults: Vec<String>,
}

/// Parses like a browser. The document must outlive its nodes, which own their children.
fn each_node(html: &str, visit: &mut dyn FnMut(&NodeData)) {
    fn each(node: &Handle, visit: &mut dyn FnMut(&NodeData)) {
        visit(&node.data);
        node.children.borrow().iter().for_each(|child| each(child, visit));
    }
    let dom = parse_document(RcDom::default(), ParseOpts::default()).one(html);
    each(&dom.document, visit);
}

impl Seen {
    fn page(html: &str) -> Self {
        let mut seen = Self::default();
        each_node(html, &mut |data| match data {
            NodeData::Text { contents } => seen.text("text", &contents.borrow()),
            NodeData::Comment { contents } => seen.faults.push(format!("comment {contents}")),
            NodeData::Element { name, attrs, .. } => {
                seen.names.insert(name.local.to_string());
                for attribute in attrs.borrow().iter() {
                    seen.attribute(&name.local, &attribute.name.local, &attribute.value);
                }
            }
            _ => {}
        });
        seen
    }

    fn text(&mut self, at: &str, text: &str) {
        if let Some(c) = text.chars().find(|c| is_invisible(*c)) {
            self.faults.push(format!("{c:?} in {at}: {text:.300}"));
        }
    }

    fn attribute(&mut self, element: &str, name: &str, value: &str) {
        self.names.insert(format!("{element} {name}"));
        let leads =
            ["href", "src", "action", "formaction", "data-graph", "data-source", "data-events"];
        if leads.contains(&name) && !(value.starts_with('/') || value.starts_with('#')) {
            self.faults.push(format!("{element} leads to {value:.300}"));
        }
        if leads.contains(&name) && value.starts_with("//") {
            self.faults.push(format!("{element} leads elsewhere: {value:.300}"));
        }
        if name.starts_with("on") || name == "style" {
            self.faults.push(format!("{element} has {name}"));
        }
        // An input must submit the original value, and browsers display it as text. So must an
        // option, whose value browsers do not display.
        if !(name == "value" && ["input", "option"].contains(&element)) {
            self.text(&format!("{element} {name}"), value);
        }
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Returns the addresses of the pages that depend on a name or a search in their address.
fn searches(text: &str) -> BTreeSet<String> {
    let name = encoded(text);
    BTreeSet::from([
        format!("/tasks?q={}", encoded(&format!("name:\"{text}\""))),
        format!("/tasks?q={name}"),
        format!("/tasks/bulk?q={name}"),
        format!("/failures?queue={name}"),
        format!("/audit?subject={name}&login={name}&action={name}"),
        format!("/audit?since={name}"),
        format!("/runs?job={name}&schedule={name}"),
        format!("/jobs/detail?name={name}"),
        format!("/jobs/versions?name={name}"),
        format!("/schedules/detail?name={name}"),
        format!("/lineage?name={name}"),
    ])
}

/// Returns the addresses of the pages in the short form, and otherwise also those of the API.
fn pages(all: BTreeSet<String>) -> BTreeSet<String> {
    let pages = all.iter().filter(|path| !path.starts_with("/api/")).cloned().collect();
    amount(pages, all)
}

/// A console, and the addresses that can be read, with `$id` and `$name` in place of values.
struct Visitor<'a> {
    console: &'a Console,
    patterns: Vec<String>,
}

impl<'a> Visitor<'a> {
    async fn new(console: &'a Console) -> Self {
        let values = [("id", "$id"), ("queue", "default"), ("group", "$name"), ("name", "$name")];
        let mut patterns = every_request(console, &values).await;
        // A stream has no end while its task is live. Its content is part of the page.
        patterns.retain(|path| !path.contains("/events"));
        Self { console, patterns }
    }

    /// Returns all addresses that display something for this name.
    fn addresses(&self, text: &str, ids: &[i64]) -> BTreeSet<String> {
        let mut all = searches(text);
        let name = encoded(text);
        for id in ids {
            let id = id.to_string();
            let address = |path: &String| path.replace("$id", &id).replace("$name", &name);
            all.extend(self.patterns.iter().map(address));
        }
        all.extend(["/tasks?q=state:finished".to_owned(), "/tasks?q=state:failed".to_owned()]);
        all
    }

    /// Visits pages with this text in the database; returns the faults and the elements of the pages.
    async fn visit(&self, paths: BTreeSet<String>, text: &str) -> Seen {
        let mut all = Seen::default();
        for path in paths {
            let answer = self.console.get(&path).await;
            let at = |fault: String| format!("{path:.200} with {text:.60?}: {fault}");
            if answer.status >= 500 {
                all.faults.push(at(format!("{} {}", answer.status, answer.body)));
            } else if answer.headers.contains("text/html") {
                if answer.body.len() > MAX_BYTES {
                    all.faults.push(at(format!("{} bytes", answer.body.len())));
                }
                let seen = Seen::page(&answer.body);
                all.faults.extend(seen.faults.into_iter().map(at));
                all.names.extend(seen.names);
            }
        }
        all
    }

    /// Visits the pages with plain words as texts.
    async fn visit_words(&self, ids: &[i64]) -> Seen {
        let mut all = self.visit(pages(self.addresses("word", ids)), "word").await;
        for word in ["nobody", "2h", "wrong:word"] {
            let paths = amount(searches(word), self.addresses(word, ids));
            let seen = self.visit(paths, word).await;
            all.names.extend(seen.names);
            all.faults.extend(seen.faults);
        }
        all
    }
}

/// Returns the texts to put into the columns, one after the other, and whether to visit all addresses
/// or only searches. The short form joins the texts, first those that every column accepts, then those
/// that names accept. In the end, each column has the longest text that it accepts.
fn rounds() -> Vec<(String, bool)> {
    let refused = |c: char| c.is_control() || ['\u{2028}', '\u{ffff}'].contains(&c);
    let in_names = |text: &&str| text.len() < 100 && !text.contains(refused);
    let names: String = CORPUS.iter().copied().filter(in_names).collect();
    let name = [MIXED, &names].concat();
    assert!(name.len() <= 512, "a name has at most 512 bytes, not {}", name.len());
    let all = [MIXED, &CORPUS.concat()].concat();
    let joined = vec![(MIXED.to_owned(), false), (name, false), (all, true)];
    amount(joined, CORPUS.iter().map(|text| ((*text).to_owned(), true)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_text_becomes_markup_in_the_console() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    let visitor = Visitor::new(&console).await;
    // First record the elements of the pages with plain words as texts, for objects that exist and
    // for objects that do not.
    let mut known = visitor.visit(pages(visitor.addresses("word", &[1])), "word").await;
    let (running, failed) = seed(&database).await;
    let mut columns = columns(&database).await;
    let ids = [1, running, failed];
    // Visit the pages also with the seeded values: a plain word is not a valid time zone, and hides
    // its group.
    for put in [false, true] {
        if put {
            put_everywhere(&database, &mut columns, "word").await;
        }
        let seen = visitor.visit_words(&ids).await;
        known.names.extend(seen.names);
        known.faults.extend(seen.faults);
    }
    assert!(known.names.len() > 60, "the parser sees {:?}", known.names);
    columns.iter_mut().for_each(|it| it.taken = 0);
    let mut faults = known.faults;
    let rounds = rounds();
    for (text, all) in &rounds {
        put_everywhere(&database, &mut columns, text).await;
        let paths = if *all { visitor.addresses(text, &ids) } else { searches(text) };
        let seen = visitor.visit(paths, text).await;
        let more = seen.names.difference(&known.names);
        faults.extend(more.map(|it| format!("{it} with {text:?}")));
        faults.extend(seen.faults);
    }
    let taken: usize = columns.iter().map(|it| it.taken).sum();
    let (texts, there) = (rounds.len(), columns.len());
    let refused = there * texts - taken;
    println!("{texts} texts in {there} columns: {taken} taken, {refused} refused");
    for column in &columns {
        let name = format!("{}.{}", column.table, column.name);
        let open = column.taken > 0;
        if open == CLOSED.iter().any(|(closed, _)| *closed == name) {
            faults.push(format!("{name} took {} texts", column.taken));
        }
    }
    let long = "x\u{202e}<b>".repeat(1 << 17);
    columns.retain(|it| !SHORT.contains(&format!("{}.{}", it.table, it.name).as_str()));
    put_everywhere(&database, &mut columns, &long).await;
    faults.extend(visitor.visit(pages(visitor.addresses("x", &ids)), "x").await.faults);
    assert!(faults.is_empty(), "{} faults: {:#?}", faults.len(), &faults[..faults.len().min(40)]);
    // A shortened text shows the omitted size, with a link to the full text.
    let page = console.get(&format!("/tasks/{failed}")).await.body;
    let whole = format!("/api/v1/tasks/{failed}");
    assert!(page.contains("bytes more") && page.contains(&format!("{whole}\"")), "{page:.3000}");
    let whole: Value = serde_json::from_str(&console.get(&whole).await.body).unwrap();
    assert_eq!(whole["attempts"][0]["message"].as_str(), Some(long.as_str()));
}

/// A form field submits the value stored in the database.
#[tokio::test(flavor = "multi_thread")]
async fn a_button_acts_on_an_object_with_an_invisible_name() {
    let database = Database::new().await;
    let name = "a\u{202e}<b>\"'&\u{200b}\u{2066}";
    job(&database, name, json!([{"name": name, "statement": "SELECT 1"}])).await;
    let console = Console::start(&database, &[]).await;
    let page = console.get(&format!("/jobs/detail?name={}", encoded(name))).await.body;
    let mut sent = None;
    each_node(&page, &mut |data| {
        let NodeData::Element { attrs, .. } = data else { return };
        let attrs = attrs.borrow();
        let of = |wanted| attrs.iter().find(|it| &*it.name.local == wanted).map(|it| &*it.value);
        if of("name") == Some("name") {
            sent = of("value").map(str::to_owned);
        }
    });
    assert_eq!(sent.as_deref(), Some(name), "{page}");
    let form = format!("name={}&enabled=false", encoded(&sent.unwrap()));
    assert_eq!(console.post("/jobs/enable", &form).await.status, 303);
    assert!(!database.value::<bool>("SELECT disabled_at IS NULL FROM mill.jobs").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_text_controls_a_terminal() {
    let database = Database::new().await;
    let (running, failed) = seed(&database).await;
    let mut columns = columns(&database).await;
    let hostile: String = CORPUS.concat().chars().filter(|c| is_invisible(*c)).collect();
    let hostile = format!("<{hostile}>");
    let (running, failed) = (running.to_string(), failed.to_string());
    let lines: [&[&str]; 25] = [
        &["status"],
        &["task", "list"],
        &["task", "list", "--state", "running"],
        &["task", "list", "--outcome", "failed"],
        &["task", "show", &running],
        &["task", "show", &failed],
        &["task", "show", "1", "--plan"],
        &["why", &running],
        &["failures"],
        &["durations"],
        &["audit"],
        &["queue", "list"],
        &["priority", "list"],
        &["group", "list"],
        &["limit", "list"],
        &["profile", "list"],
        &["job", "list"],
        &["dependency", "list"],
        &["run", "list"],
        &["run", "show", "1"],
        &["schedule", "list"],
        &["schedule", "log"],
        &["worker", "list"],
        &["history"],
        &["doctor"],
    ];
    let (mut shown, mut faults) = (0, Vec::new());
    // Names of jobs and schedules accept no control characters, and keep the first text.
    for (text, lines) in [("<\u{202e}\u{200b}\u{2066}>", &[][..]), (hostile.as_str(), &lines[..])] {
        put_everywhere(&database, &mut columns, text).await;
        let named: [&[&str]; 4] = [
            &["job", "show", text],
            &["lineage", text],
            &["schedule", "show", text],
            &["schedule", "history", text],
        ];
        for line in named.iter().chain(lines) {
            let (code, stdout, stderr) = Program::pgmill(&database, line).run().await;
            let output = format!("{stdout}{stderr}");
            assert!(code != 101 && !output.contains("panicked"), "{line:?}: {output}");
            assert!(!output.contains("unrecognized subcommand"), "{line:?}: {output}");
            // Without a terminal the programs print no colours, which are their only escape
            // sequences.
            let raw = output.lines().filter(|line| line.chars().any(is_invisible));
            faults.extend(raw.map(|it| format!("{line:?}: {it:.300}")));
            shown += usize::from(output.contains("\\u{202e}"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(shown > 15, "only {shown} commands have shown the text");
    let top = Terminal::start(Program::pgmill(&database, &["top"]).into_command());
    top.until_shown("\\u{").await;
    assert!(!top.text().chars().any(is_invisible), "{}", top.text());
}
