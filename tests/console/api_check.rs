//! Tests the API with schemathesis, which reads the description, generates valid and invalid
//! requests, and compares the responses with the description.
//!
//! Needs Python 3.11 and the packages of `tests/api/tools.txt`; `make api-check` installs them and
//! runs only this test.

use std::path::Path;
use std::process::{Command, Output};

use tokio::task::spawn_blocking;

use crate::console::seed::seed;
use crate::harness::Database;
use crate::harness::console::Console;

/// Seed of the generated requests. Another seed generates other requests.
const SEED: &str = "20261122";

/// Number of examples per operation and phase.
const EXAMPLES: &str = "100";

/// Configuration of schemathesis: facts that its checks, all of which are enabled, cannot know.
const CONFIG: &str = "tests/api/schemathesis.toml";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs schemathesis: make api-check"]
async fn schemathesis_finds_nothing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("tools/api");
    let database = Database::new().await;
    seed(&database).await;
    // The objects that the description's examples refer to.
    database
        .execute(
            "SELECT mill.set_schedule('nightly', 'daily(03:15)', 'SELECT 1');
             SELECT mill.set_dependency('nightly', 'evening')",
        )
        .await;
    let console = Console::start(&database, &[]).await;
    let mut command = Command::new(folder.join("bin/schemathesis"));
    // schemathesis stores examples in its working directory.
    command.current_dir(&folder).arg("--config-file").arg(root.join(CONFIG)).arg("run");
    command.arg(format!("http://{}/api/v1/openapi.json", console.address));
    command.args(["--no-color", "--seed", SEED, "--max-examples", EXAMPLES]);
    command.args(["--phases", "examples,coverage,fuzzing", "--workers", "2"]);
    command.args(["--generation-database", "none", "--request-timeout", "30"]);
    let reported = format!("cannot run {}; make api-check installs it", folder.display());
    let Output { status, stdout, stderr } =
        spawn_blocking(move || command.output().expect(&reported)).await.unwrap();
    let printed =
        [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{printed}");
    assert!(status.success(), "schemathesis reports failures");
    assert_eq!(console.get("/livez").await.status, 200);
}
