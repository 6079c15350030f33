//! Every page of the console names its environment.

use crate::harness::console::{Console, TokenFile};
use crate::harness::{Database, Program};

#[tokio::test]
async fn every_page_names_the_environment_in_its_header_and_title() {
    let database = Database::new().await;
    let plain = Console::start(&database, &[]).await.get("/tasks").await.body;
    assert!(!plain.contains("class=\"environment") && plain.contains("<title>Tasks ·"), "{plain}");

    let flags = ["--environment", "prod <1>", "--environment-color", "red"];
    let console = Console::start(&database, &flags).await;
    for path in ["/", "/tasks", "/database", "/runs/4711"] {
        let page = console.get(path).await.body;
        assert!(page.contains("<title>prod &#60;1&#62;: "), "{path}: {page}");
        assert!(page.contains("class=\"environment env-red\""), "{path}: {page}");
    }

    let file = TokenFile::new("a-token-of-enough-characters");
    let flags = ["--token-file", file.path(), "--environment", "test"];
    let page = Console::start(&database, &flags).await.get("/login").await.body;
    assert!(page.contains("<title>test: ") && page.contains("env-gray"), "{page}");
}

#[tokio::test]
async fn a_wrong_environment_is_refused_at_the_start() {
    let database = Database::new().await;
    for flags in [
        &["--environment", " "][..],
        &["--environment", "a name that is far too long for a header"],
        &["--environment", "prod", "--environment-color", "pink"],
    ] {
        let (code, _, error) =
            Program::pgmill(&database, &[&["console"], flags].concat()).run().await;
        assert_eq!(code, 2, "{flags:?}: {error}");
    }
}
