//! Completion of the command line: the names that the scripts of `pgmill completions` offer.

use std::process::Command;
use std::time::Instant;

use crate::harness::login::Login;
use crate::harness::program::PathFolder;
use crate::harness::{Database, Program, eventually};

/// Completes the last word of a command line.
async fn complete(program: impl Fn(&[&str]) -> Program, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let index = (words.len() - 1).to_string();
    let (code, stdout, stderr) =
        program(&[&["__complete", &*index][..], &words].concat()).run().await;
    assert_eq!((code, stderr.as_str()), (0, ""), "{line}");
    stdout.lines().collect::<Vec<_>>().join(" ")
}

/// Waits until these names are offered: on a busy machine, the program may give up before the database
/// answers, and offers nothing.
async fn until_completed(program: impl Fn(&[&str]) -> Program, line: &str, names: &str) {
    eventually(line, async || {
        let offered = complete(&program, line).await;
        assert!(offered == names || offered.is_empty(), "{line}: {offered}");
        offered == names
    })
    .await;
}

async fn with_names() -> Database {
    let database = Database::new().await;
    database
        .execute(
            "SELECT mill.pause('etl'); SELECT mill.set_max_running('queue', 'extra', 4);
             SELECT mill.enqueue('SELECT 1', queue => 'events'), mill.enqueue('SELECT 1', queue => 'mail');
             SELECT mill.set_max_running('key', 'customer 17', 1);
             SELECT mill.set_group('nightly'); SELECT mill.set_profile('bi');
             SELECT mill.set_job('daily', '[{\"name\": \"t\", \"statement\": \"SELECT 1\"}]');
             SELECT mill.set_job('sunday', '[{\"name\": \"t\", \"statement\": \"SELECT 1\"}]');
             SELECT mill.set_schedule('s1', 'manual', jobs => '{daily}');
             SELECT mill.set_schedule('gone', 'manual', jobs => '{daily}'); SELECT mill.remove_schedules('{gone}');
             SELECT mill.start_run(ARRAY['daily']) FROM generate_series(1, 12);
             INSERT INTO mill.workers (id, session_pid, session_started_at, readers, heartbeat_interval, orphan_timeout)
                VALUES ('3f2a0000-0000-0000-0000-000000000001', 1, now(), 1, '5 s', '30 s')",
        )
        .await;
    database
}

#[tokio::test]
async fn names_and_ids_come_from_the_database() {
    let database = with_names().await;
    let viewer = Login::new(&database, "viewer", "mill_viewer").await;
    let program = |arguments: &[&str]| Program::pgmill(&database, arguments).at(&viewer.url());
    for (line, names) in [
        ("pgmill queue pause e", "etl events extra"),
        ("pgmill task list --state pending --queue ev", "events"),
        ("pgmill task list --queue=ev", "--queue=events"),
        ("pgmill task list --queue = ev", "events"),
        ("pgmill --json queue set ", "default etl events extra mail"),
        ("pgmill job show ", "daily sunday"),
        ("pgmill job show daily,s", "daily,sunday"),
        ("pgmill run list --job d", "daily"),
        ("pgmill schedule show ", "s1"),
        ("pgmill schedule set s1 --job daily,s", "daily,sunday"),
        ("pgmill why s", "s1"),
        ("pgmill group set ", "nightly"),
        ("pgmill profile remove b", "bi"),
        ("pgmill limit set c", "customer 17"),
        ("pgmill run show 1", "12 11 10 1"),
        ("pgmill run cancel 12 1", "12 11 10 1"),
        ("pgmill history --run 11", "11"),
        ("pgmill worker drain 3", "3f2a0000-0000-0000-0000-000000000001"),
        // A verb, an option, the value of another option, a second name where there is only one.
        ("pgmill queue pa", ""),
        ("pgmill queue pause --dr", ""),
        ("pgmill task list --state p", ""),
        ("pgmill queue pause etl e", ""),
        ("pgmill queue pause nothing", ""),
    ] {
        until_completed(program, line, names).await;
    }
    // The connection string of the command line takes precedence.
    let nowhere = |arguments: &[&str]| Program::pgmill(&database, arguments).at("port=1");
    let line = format!("pgmill --database-url {} queue pause et", viewer.url());
    until_completed(nowhere, &line, "etl").await;
    viewer.drop().await;
}

#[tokio::test]
async fn completion_is_silent_if_the_database_does_not_answer() {
    let database = with_names().await;
    // A server that accepts connections and never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("postgresql://a:b@{}/c", listener.local_addr().unwrap());
    let wrong = database.url_as("nobody", "wrong");
    for url in
        [silent.as_str(), "postgresql://a@127.0.0.1:1/c", &wrong, "not a url =", "host=/nowhere"]
    {
        let program = |arguments: &[&str]| Program::pgmill(&database, arguments).at(url);
        let begun = Instant::now();
        assert_eq!(complete(program, "pgmill queue pause e").await, "", "{url}");
        println!("{url}: {:?}", begun.elapsed());
    }
}

/// Sources the script $1 of a shell, and prints what it offers for the words after it.
const BASH: &str = r#"
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
function=$(complete -p pgmill | sed -n 's/.*-F \([^ ]*\).*/\1/p')
"$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

#[tokio::test]
async fn the_scripts_offer_names_and_verbs() {
    let database = with_names().await;
    let folder = PathFolder::new();
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", folder.path().display());
    let offered = async |shell: &str, program: &str, words: &[&str]| -> Option<Vec<String>> {
        let script = Program::pgmill(&database, &["completions", shell]).succeeds().await;
        let file = folder.path().join(format!("script.{shell}"));
        std::fs::write(&file, script).unwrap();
        let mut command = Command::new(shell);
        command.args(["-c", program, shell]).arg(&file).args(words);
        command.env("DATABASE_URL", database.url()).env("PATH", &path);
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().ok()?;
        let text = String::from_utf8(output.stdout).unwrap();
        Some(text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect())
    };
    let fish = r#"source $argv[2]; complete -C "$argv[3..]""#;
    for (words, expected) in [
        (&["pgmill", "queue", "pause", "e"][..], &["etl", "events", "extra"][..]),
        (&["pgmill", "limit", "set", "cust"], &["customer\\ 17"]),
        (&["pgmill", "queue", "pau"], &["pause"]),
    ] {
        // On a busy machine, the program may give up before the database answers.
        eventually(&format!("bash {words:?}"), async || {
            offered("bash", BASH, words).await.unwrap() == expected
        })
        .await;
        let expected: Vec<String> = expected.iter().map(|it| it.replace('\\', "")).collect();
        eventually(&format!("fish {words:?}"), async || {
            // A machine for tests may have no fish.
            offered("fish", fish, words).await.is_none_or(|names| names == expected)
        })
        .await;
    }
}
