//! Users of the console: each has a database role, scopes and an expiry time.

use serde_json::json;

use crate::harness::console::{Console, TokenFile, csrf};
use crate::harness::login::Login;
use crate::harness::{Database, Program, eventually};

const ACCESS: &str = r#"
[[token]]
name = "ci"
token = "token-of-the-producer"
role = "mill_producer"

[[token]]
name = "dash board"
token = "token-of-the-viewer"
role = "mill_viewer"
scopes = ["read"]

[[token]]
name = "ann"
token = "token-of-the-operator"

[[token]]
name = "bob"
token = "token-that-has-expired"
expires_at = "2020-01-01T00:00:00Z"

[[token]]
name = "starter"
token = "token-that-starts-runs"
scopes = ["run"]

[proxy]
addresses = ["127.0.0.1"]
user_header = "X-Forwarded-User"
groups_header = "X-Forwarded-Groups"

[[user]]
name = "eve"
role = "mill_operator"

[[user]]
group = "analysts"
role = "mill_viewer"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn each_user_has_the_privileges_of_a_role() {
    let database = Database::new().await;
    let login = Login::new(&database, "console", "mill_viewer, mill_operator, mill_producer").await;
    let file = TokenFile::new(ACCESS);
    let mut console =
        Console::start_at(&database, &login.url(), &["--access-file", file.path()]).await;
    let host = ("Host", console.address.clone());
    let task = json!({ "tasks": [{ "statement": "SELECT 1" }] });
    let pause = json!({ "queue": "default", "paused": true });
    let start = json!({ "jobs": ["none"] });
    for (user, get, enqueue, operate, run) in [
        ("Authorization: Bearer token-of-the-producer", 403, 200, 403, 422),
        ("Authorization: Bearer token-of-the-viewer", 200, 403, 403, 403),
        ("Authorization: Bearer token-of-the-operator", 200, 200, 200, 422),
        ("Authorization: Bearer token-that-has-expired", 401, 401, 401, 401),
        ("Authorization: Bearer token-that-starts-runs", 403, 403, 403, 422),
        ("Authorization: Bearer token-of-nobody-at-all", 401, 401, 401, 401),
        ("X-Forwarded-User: eve", 200, 200, 200, 422),
        ("X-Forwarded-User: mallory", 403, 403, 403, 403),
        ("X-Forwarded-Groups: analysts", 401, 401, 401, 401),
    ] {
        let own = user.split_once(": ").unwrap();
        let headers = [(host.0, host.1.as_str()), own];
        let answer = console.request("GET", "/api/v1/queues", &headers, "").await;
        assert_eq!(answer.status, get, "{user} reads: {}", answer.body);
        for (path, body, status) in
            [("tasks", &task, enqueue), ("queues/pause", &pause, operate), ("runs", &start, run)]
        {
            let answer = console.post_json(&format!("/api/v1/{path}"), body, &[own]).await;
            assert_eq!(answer.status, status, "{user}, {path}: {}", answer.body);
        }
    }
    let audit = "SELECT string_agg(DISTINCT concat_ws(' as ', actor, role), ', ') FROM mill.audit WHERE action = 'pause'";
    let actors: String = database.value(audit).await;
    assert_eq!(actors, "console: ann, console: eve as mill_operator");

    // Pages of a user without privileges have no forms; those of an operator work.
    let page = |user: &'static str, groups: &'static str| {
        let headers = [
            (host.0, host.1.clone()),
            ("X-Forwarded-User", user.into()),
            ("X-Forwarded-Groups", groups.into()),
        ];
        let console = &console;
        async move {
            let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
            console.request("GET", "/queues", &headers, "").await
        }
    };
    let seen = page("carl", "sales, analysts").await;
    assert_eq!(seen.status, 200);
    assert!(!seen.body.contains("/queues/default/pause"), "{}", seen.body);
    let seen = page("eve", "").await.body;
    let form = format!("paused=false&csrf={}", csrf(&seen));
    let done =
        console.post_with("/queues/default/pause", &form, &[("X-Forwarded-User", "eve")]).await;
    assert_eq!(done.status, 303, "{}", done.body);
    let other = console
        .post_with(
            "/queues/default/pause",
            &form,
            &[("X-Forwarded-User", "carl"), ("X-Forwarded-Groups", "analysts")],
        )
        .await;
    assert_eq!(other.status, 403, "{}", other.body);
    console.terminate().await;
    login.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_addresses_of_the_proxy_can_name_a_user() {
    let database = Database::new().await;
    let file = TokenFile::new(
        r#"
[proxy]
addresses = ["192.0.2.1"]
user_header = "X-Forwarded-User"
[[user]]
"#,
    );
    let console = Console::start(&database, &["--access-file", file.path()]).await;
    let headers = [("Host", console.address.as_str()), ("X-Forwarded-User", "ann")];
    for path in ["/", "/api/v1/queues"] {
        let answer = console.request("GET", path, &headers, "").await;
        assert_eq!(answer.status, 401, "{path}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_taken_out_of_the_file_ends_its_sessions() {
    let database = Database::new().await;
    for (flag, both, one) in [
        (
            "--access-file",
            "[[token]]\nname = \"ann\"\ntoken = \"the-token-of-ann-1\"\n\
             [[token]]\nname = \"bob\"\ntoken = \"the-token-of-bob-1\"\n",
            "[[token]]\nname = \"bob\"\ntoken = \"the-token-of-bob-1\"\nscopes = [\"read\"]\n",
        ),
        (
            "--token-file",
            "the-token-of-ann-1 ann\nthe-token-of-bob-1 bob\n",
            "the-token-of-bob-1 bob\n",
        ),
    ] {
        let file = TokenFile::new(both);
        let console = Console::start(&database, &[flag, file.path()]).await;
        let status = async |token: &str| {
            let token = format!("Bearer {token}");
            let headers = [("Host", console.address.as_str()), ("Authorization", &token)];
            console.request("GET", "/api/v1/queues", &headers, "").await.status
        };
        // A page that does not exist needs a session, too, but no query.
        let with_cookie = async |cookie: &str| {
            let headers = [("Host", console.address.as_str()), ("Cookie", cookie)];
            console.request("GET", "/nothing", &headers, "").await.status
        };
        let ann = console.sign_in("the-token-of-ann-1", "").await;
        let bob = console.sign_in("the-token-of-bob-1", "").await;
        assert_eq!((with_cookie(&ann).await, with_cookie(&bob).await), (404, 404));
        std::fs::write(file.path(), one).unwrap();
        eventually("the session of ann has ended", async || with_cookie(&ann).await == 303).await;
        assert_eq!((with_cookie(&bob).await, status("the-token-of-bob-1").await), (404, 200));
        assert_eq!(status("the-token-of-ann-1").await, 401);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_repeats_another_one_is_refused_with_both_lines() {
    let database = Database::new().await;
    let users = "[proxy]\naddresses = [\"127.0.0.1\"]\nuser_header = \"X-User\"\n\
                 [[user]]\nname = \"ann\"\nrole = \"mill_viewer\"\n\
                 [[user]]\nname = \"ann\"\nrole = \"mill_operator\"\n";
    for (flag, text, expected) in [
        (
            "--access-file",
            "[[token]]\nname = \"a\"\ntoken = \"the-token-of-both\"\n\n\
             [[token]]\nname = \"b\"\nrole = \"mill_viewer\"\ntoken = \"the-token-of-both\"\n",
            "line 8 repeats the token of line 3",
        ),
        ("--access-file", users, "line 7 repeats the [[user]] of line 4"),
        (
            "--token-file",
            "the-token-of-both a\nanother-token-here\n\nthe-token-of-both b\n",
            "line 4 repeats the token of line 1",
        ),
    ] {
        let file = TokenFile::new(text);
        let arguments = ["console", "--listen", "127.0.0.1:0", flag, file.path()];
        let (code, stdout, stderr) = Program::pgmill(&database, &arguments).run().await;
        assert_eq!(code, 2, "{stdout}{stderr}");
        assert!(stderr.contains(expected) && !stderr.contains("the-token-of-both"), "{stderr}");
    }
}
