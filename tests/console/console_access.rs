//! Access control of the web console, and the security headers of every response.

use crate::harness::console::{Console, TokenFile, csrf};
use crate::harness::login::Login;
use crate::harness::routes::{filled, post_routes};
use crate::harness::{Database, Program};

const TOKEN: &str = "a-token-of-enough-characters";

/// Values for the parameters of paths.
const VALUES: [(&str, &str); 3] =
    [("id", "00000000-0000-0000-0000-000000000001"), ("queue", "default"), ("group", "g")];

#[tokio::test(flavor = "multi_thread")]
async fn every_response_forbids_foreign_content() {
    let database = Database::new().await;
    let console = Console::start(&database, &[]).await;
    for path in ["/", "/nothing", "/api/v1/queues", "/static/console.js"] {
        let headers = console.get(path).await.headers;
        for header in [
            "content-security-policy: default-src 'self';",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: same-origin",
        ] {
            assert!(headers.contains(header), "{header} for {path}: {headers}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_name_another_origin_or_no_csrf_token_is_refused() {
    let database = Database::new().await;
    let console = Console::start(&database, &["--allow-host", "console.example"]).await;
    let address = console.address.as_str();
    for (host, status) in [
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("console.example", 200),
        ("localhost:1", 200),
    ] {
        let answer = console.request("GET", "/queues", &[("Host", host)], "").await;
        assert_eq!(answer.status, status, "{host}");
    }
    let page = console.get("/priorities").await.body;
    let form = format!("paused=true&csrf={}", csrf(&page));
    for origin in ["http://evil.example", "null", ""] {
        let headers = [("Host", address), ("Origin", origin)];
        let answer = console.request("POST", "/queues/default/pause", &headers, &form).await;
        assert_eq!(answer.status, 403, "from {origin:?}");
    }
    let answer =
        console.request("POST", "/queues/default/pause", &[("Host", address)], &form).await;
    assert_eq!(answer.status, 403, "without an origin");
    for (site, status) in [
        ("cross-site", 403),
        ("same-site", 403),
        ("", 403),
        ("Same-Origin", 403),
        ("same-origin", 303),
        ("none", 303),
    ] {
        let site = ("Sec-Fetch-Site", site);
        let answer = console.post_with("/queues/default/pause", &form, &[site]).await;
        assert_eq!(answer.status, status, "{site:?}: {}", answer.body);
        let twice = [("Sec-Fetch-Site", "same-origin"), site];
        let answer = console.post_with("/queues/default/pause", &form, &twice).await;
        assert_eq!(answer.status, status, "{twice:?}: {}", answer.body);
    }
    database.execute("DELETE FROM mill.queues").await;
    for path in post_routes().iter().map(String::as_str).chain(["/logout"]) {
        for form in ["paused=true", "paused=true&csrf=", "paused=true&csrf=1"] {
            let answer = console.post_with(&filled(path, &VALUES), form, &[]).await;
            assert_eq!(answer.status, 403, "{path} with {form}");
        }
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.queues").await, 0);
    let answer = console.post_with("/queues/default/pause", &form, &[]).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    assert_eq!(
        console.post("/queues/default/pause", "paused=false&back=//evil.example").await.status,
        303
    );
    assert_eq!(console.request("PUT", "/queues", &[("Host", address)], "").await.status, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_console_refuses_every_act() {
    let database = Database::new().await;
    let file = TokenFile::new(&TOKEN.to_uppercase());
    let flags = ["--read-only", "--token-file", file.path()];
    let console = Console::start(&database, &flags).await;
    let answer = console.post_with("/login", &format!("token={}", TOKEN.to_uppercase()), &[]).await;
    let set = answer.headers.lines().find(|line| line.starts_with("set-cookie: ")).unwrap();
    let cookie = set.trim_start_matches("set-cookie: ").split(';').next().unwrap();
    let own = [("Host", console.address.as_str()), ("Cookie", cookie)];
    let page = console.request("GET", "/queues", &own, "").await.body;
    // Only the sign-out form is offered; its token is valid for all forms.
    let form = format!("paused=true&csrf={}", csrf(&page));
    let form = format!("{form}&q=id:1&capacity=high&max_running=1&name=it&enabled=false");
    let form = format!(
        "{form}&up_to=1&draining=true&task=it&low=1&id=1&action=pause&screen=tasks&query=q"
    );
    database
        .execute(
            r#"SELECT mill.set_job('it', '[{"name": "it", "statement": "SELECT 1"}]');
               SELECT mill.set_schedule('it', 'manual', jobs => ARRAY['it']);
               SELECT mill.set_group('g'); SELECT mill.start_run(ARRAY['it']);
               SELECT mill.enqueue('SELECT 1');
               SELECT mill.set_subscription('it', '{"events": ["run_failed"], "channel": "c"}')"#,
        )
        .await;
    let rows = "SELECT (SELECT count(*) FROM mill.audit) + (SELECT count(*) FROM mill.runs)";
    let before: i64 = database.value(rows).await;
    for path in post_routes() {
        // The id of a task or a run, or that of a worker.
        let id = if path.starts_with("/workers/") { VALUES[0].1 } else { "1" };
        let path = filled(&path, &[&[("id", id)], &VALUES[1..]].concat());
        let refused = console.post_with(&path, &form, &[own[1]]).await;
        assert_eq!(refused.status, 403, "{path}: {}", refused.body);
        let reported = ["this console is read-only", "this login or this console is read-only"];
        assert!(reported.iter().any(|it| refused.body.contains(it)), "{path}: {}", refused.body);
    }
    assert_eq!(database.value::<i64>("SELECT count(*) FROM mill.queues").await, 0);
    assert_eq!(database.value::<i64>(rows).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_nothing_is_shown_and_the_actor_is_recorded() {
    let database = Database::new().await;
    let file = TokenFile::new(TOKEN);
    let console = Console::start(&database, &["--token-file", file.path()]).await;
    for path in ["/", "/tasks/1", "/nothing"] {
        let answer = console.get(path).await;
        assert_eq!(answer.status, 303, "{path}");
        assert!(answer.headers.contains("location: /login"), "{}", answer.headers);
    }
    assert_eq!(console.get("/api/v1/queues").await.status, 401);
    assert_eq!(console.get("/livez").await.status, 200);
    assert_eq!(console.post_with("/login", "token=guess", &[]).await.status, 401);

    let answer = console.post_with("/login", &format!("token={TOKEN}&name=ann"), &[]).await;
    assert_eq!(answer.status, 303);
    let set = answer.headers.lines().find(|line| line.starts_with("set-cookie: ")).unwrap();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"), "{set}");
    let cookie = set.trim_start_matches("set-cookie: ").split(';').next().unwrap();
    let own = [("Host", console.address.as_str()), ("Cookie", cookie)];
    let page = console.request("GET", "/queues", &own, "").await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("sign out ann"));
    let form = format!("csrf={}", csrf(&page.body));
    // A trigger captures the actor recorded in the audit.
    database
        .execute(
            "CREATE TABLE seen (actor text); GRANT INSERT ON seen TO PUBLIC;
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.seen VALUES (current_setting('mill.actor', true)); RETURN NULL; END $$;
             CREATE TRIGGER see AFTER INSERT ON mill.queues EXECUTE FUNCTION see()",
        )
        .await;
    let paused =
        console.post_with("/queues/default/pause", &format!("paused=true&{form}"), &[own[1]]).await;
    assert_eq!(paused.status, 303, "{}", paused.body);
    assert_eq!(database.value::<String>("SELECT actor FROM seen").await, "console: ann");
    assert_eq!(console.post_with("/logout", &form, &[own[1]]).await.status, 303);
    assert_eq!(console.request("GET", "/queues", &own, "").await.status, 303);

    let bearer = format!("Bearer {TOKEN}");
    let program = [own[0], ("Authorization", bearer.as_str())];
    assert_eq!(console.request("GET", "/api/v1/queues", &program, "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_address_needs_a_token_of_minimum_length() {
    let database = Database::new().await;
    let open = ["console", "--listen", "0.0.0.0:0"];
    let (code, _, output) = Program::pgmill(&database, &open).run().await;
    assert_eq!(code, i32::from(cli::exit::USAGE), "{output}");
    assert!(output.contains("a token is required") && output.contains("--token-file"), "{output}");
    let short = TokenFile::new("short");
    let flags = ["console", "--token-file", short.path()];
    let (code, _, output) = Program::pgmill(&database, &flags).run().await;
    assert_eq!(code, i32::from(cli::exit::USAGE), "{output}");
    assert!(output.contains("fewer than 16 characters"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_without_privileges_gets_the_missing_grant() {
    let database = Database::new().await;
    let login = Login::new(&database, "stranger", "").await;
    let console = Program::pgmill(&database, &["console", "--listen", "127.0.0.1:0"]);
    let (code, _, stderr) = console.at(&login.url()).run().await;
    assert_eq!(code, 5, "{stderr}");
    let grant = format!("GRANT mill_viewer TO \"{}\"", login.name);
    for text in ["is not allowed to read the queue", &grant] {
        assert!(stderr.contains(text), "{text} in {stderr}");
    }
    login.gone().await;
}
