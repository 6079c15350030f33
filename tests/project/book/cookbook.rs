//! The recipes of the cookbook, and the tutorial: every block runs, and the result is checked.
//!
//! `recipes/PAGE.sql` has a part for each recipe of the page, which begins with `-- recipe: TITLE`.
//! Its sections are executed in this order: `worker` (configuration file of the worker), `target`
//! (statements in the other database), `before` and `until` (a condition to wait for), then the
//! blocks of the recipe, then `after`, `expect` (a condition to wait for), `expect target`, `printed`
//! (text that the shell blocks print) and `received` (text that a web server receives).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::harness::program::PathFolder;
use crate::harness::receiver::Receiver;
use crate::harness::{Database, Program, Worker, amount, eventually};
use crate::project::tidy::root;

/// Number of recipes that run at once.
const AT_ONCE: usize = 4;
/// Number of recipes that the book promises.
const AT_LEAST: usize = 25;

const FLAGS: [&str; 4] = ["--readers", "4", "--poll-interval", "100ms"];

static NEXT: AtomicU32 = AtomicU32::new(1);

struct Recipe {
    page: String,
    title: String,
    /// Blocks of the page: language and text.
    blocks: Vec<(String, String)>,
    /// Sections of the check: name and text.
    check: Vec<(String, String)>,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_recipe_has_the_result_that_it_describes() {
    let mut recipes = Vec::new();
    for page in ["loading", "maintenance", "capacity", "failures", "jobs"] {
        recipes.extend(recipes_of(page));
    }
    assert!(recipes.len() >= AT_LEAST, "{} recipes", recipes.len());
    // A sample with recipes of each page, or all.
    let wanted = recipes.into_iter().skip(amount(3, 0)).step_by(amount(5, 1));
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    for recipe in wanted {
        let permit = Arc::clone(&permits).acquire_owned().await.unwrap();
        // A thread each: a recipe that waits for a process must not delay the others.
        running.spawn_blocking(move || {
            Handle::current().block_on(run(recipe));
            drop(permit);
        });
    }
    let mut failed = 0;
    while let Some(result) = running.join_next().await {
        failed += usize::from(result.is_err());
    }
    assert_eq!(failed, 0, "failed recipes: their messages are above");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tutorial_has_the_results_that_it_describes() {
    let text = fs::read_to_string(root().join("docs/tutorial.md")).unwrap();
    let [check] = &checks("tutorial")[..] else { panic!("expected one check") };
    let (page, title) = ("tutorial".to_owned(), check.0.clone());
    run(Recipe { page, title, blocks: blocks(&text), check: check.1.clone() }).await;
}

/// Returns the recipes of a page; each has a check, and each check a recipe.
fn recipes_of(page: &str) -> Vec<Recipe> {
    let text = fs::read_to_string(root().join(format!("docs/cookbook/{page}.md"))).unwrap();
    let sections = text.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap());
    let checks = checks(page);
    let titles: Vec<&str> = sections.clone().map(|(title, _)| title).collect();
    let checked: Vec<&str> = checks.iter().map(|(title, _)| &**title).collect();
    assert_eq!(titles, checked, "recipes of {page} and their checks");
    let recipe = |((title, text), (_, check)): ((&str, &str), (String, Sections))| Recipe {
        page: page.to_owned(),
        title: title.to_owned(),
        blocks: blocks(text),
        check,
    };
    sections.zip(checks).map(recipe).collect()
}

type Sections = Vec<(String, String)>;

/// Returns the checks of a page: title and sections.
fn checks(page: &str) -> Vec<(String, Sections)> {
    let file = root().join(format!("tests/project/book/recipes/{page}.sql"));
    let text = fs::read_to_string(file).unwrap();
    let mut checks: Vec<(String, Sections)> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("-- recipe: ") {
            checks.push((title.to_owned(), Vec::new()));
        } else if let Some(section) = line.strip_prefix("-- ") {
            let (name, rest) = section.split_once(": ").unwrap_or((section, ""));
            checks.last_mut().unwrap().1.push((name.to_owned(), rest.to_owned()));
        } else if let Some((_, section)) =
            checks.last_mut().and_then(|(_, sections)| sections.last_mut())
        {
            section.push_str(line);
            section.push('\n');
        }
    }
    for (title, sections) in &checks {
        let checked = |(name, _): &(String, String)| {
            ["printed", "received"].contains(&&**name) || name.starts_with("expect")
        };
        assert!(sections.iter().any(checked), "{title} has no check");
    }
    checks
}

/// Returns the blocks with a language that the test executes: SQL, shell and files for `pgmill
/// apply`. A word behind the language excludes a block.
pub(crate) fn blocks(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines() {
        // A block of a list is indented.
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some("")) => found.extend(open.take()),
            (Some((_, block)), _) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, None) => {}
        }
    }
    found.retain(|(language, _)| ["sql", "sh", "toml"].contains(&&**language));
    found
}

/// What a recipe needs while it runs.
struct Stage {
    name: String,
    database: Database,
    /// Another database, if the configuration of the worker names it.
    target: Option<Database>,
    receiver: Receiver,
    folder: PathBuf,
    programs: PathFolder,
    printed: String,
}

async fn run(recipe: Recipe) {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("pgmill-recipe-{}-{n}", std::process::id()));
    fs::create_dir_all(folder.join("jobs")).unwrap();
    let configuration = recipe.check.iter().find(|(name, _)| name == "worker");
    let configuration = configuration.map(|(_, text)| &**text);
    let has_target = configuration.is_some_and(|text| text.contains("{target}"));
    let mut stage = Stage {
        name: format!("{}: {}", recipe.page, recipe.title),
        database: Database::new().await,
        target: if has_target { Some(Database::empty().await) } else { None },
        receiver: Receiver::start().await,
        folder,
        programs: PathFolder::new(),
        printed: String::new(),
    };
    let _worker = stage.start_worker(configuration).await;
    let is_first = |(name, _): &&(String, String)| ["target", "before", "until"].contains(&&**name);
    for (name, text) in recipe.check.iter().filter(is_first) {
        stage.step(name, text).await;
    }
    for (language, text) in &recipe.blocks {
        stage.block(language, text).await;
    }
    for (name, text) in recipe.check.iter().filter(|it| !is_first(it) && it.0 != "worker") {
        stage.step(name, text).await;
    }
    let _ = fs::remove_dir_all(&stage.folder);
    println!("{}", stage.name);
}

impl Stage {
    async fn start_worker(&self, configuration: Option<&str>) -> Worker {
        let start = |flags: &[&str]| {
            let reason = "the tables of a recipe belong to the login of its tasks";
            Worker::start_as_superuser(&self.database, reason, flags)
        };
        let Some(text) = configuration else { return start(&FLAGS) };
        let mut text = text.replace("{receiver}", &self.receiver.url("/"));
        if let Some(target) = &self.target {
            let known = "SELECT mill.set_target('dwh', allowed => ARRAY[current_user])";
            self.database.execute(known).await;
            let flags = ["target", "init", "--database-url", &target.url()];
            let reason = "prepares the database of a target";
            Program::pgmill(&self.database, &flags)
                .by_superuser(&self.database, reason)
                .succeeds()
                .await;
            text = text.replace("{target}", &target.url());
        }
        let file = self.folder.join("worker.toml");
        fs::write(&file, text).unwrap();
        let flags = [&FLAGS[..], &["--config", file.to_str().unwrap()]].concat();
        start(&flags)
    }

    async fn step(&self, name: &str, text: &str) {
        let at = format!("{}: {name} {text}", self.name);
        let holds = async |database: &Database| {
            eventually(&at, async || {
                let rows = database.rows(text, &[]).await;
                matches!(&rows[..], [row] if row.get::<_, Option<bool>>(0) == Some(true))
            })
            .await;
        };
        match name {
            "before" | "after" => self.database.execute(text).await,
            "target" => self.target.as_ref().unwrap().execute(text).await,
            "until" | "expect" => holds(&self.database).await,
            "expect target" => holds(self.target.as_ref().unwrap()).await,
            "printed" => assert!(self.printed.contains(text.trim()), "{at}\n{}", self.printed),
            "received" => {
                let arrived = || {
                    self.receiver
                        .received()
                        .iter()
                        .any(|it| it.body.to_string().contains(text.trim()))
                };
                eventually(&at, async || arrived()).await;
            }
            name => panic!("{}: unknown section {name}", self.name),
        }
    }

    async fn block(&mut self, language: &str, text: &str) {
        match language {
            "sql" => self.database.execute(text).await,
            "toml" => fs::write(self.folder.join("jobs/recipe.toml"), text).unwrap(),
            _ => {
                let mut shell = shell(&self.programs, &self.folder, text);
                shell.env("DATABASE_URL", self.database.url());
                let output =
                    tokio::task::spawn_blocking(move || shell.output()).await.unwrap().unwrap();
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{}\n{text}\n{stderr}", self.name);
                self.printed += &String::from_utf8_lossy(&output.stdout);
            }
        }
    }
}

/// Returns a shell that executes a block with the programs in its PATH.
pub(crate) fn shell(programs: &PathFolder, folder: &Path, block: &str) -> Command {
    #[expect(clippy::disallowed_methods, reason = "the shell needs it too")]
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-eu", "-c", block]).current_dir(folder).env("PATH", path);
    shell
}
