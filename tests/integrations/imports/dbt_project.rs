//! Projects for `make dbt-check`: a copy of the sample, or a generated one; and dbt itself.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::Database;
use crate::project::tidy::root;

static NEXT: AtomicU32 = AtomicU32::new(1);

/// Seed of the generated projects.
const SEED: u64 = 20_261_125;

/// Rows of a generated seed.
const ROWS: usize = 200;

/// A project in a folder of its own, removed on drop.
pub(crate) struct Project {
    pub(crate) folder: PathBuf,
    pub(crate) name: &'static str,
}

/// How long a call of dbt took.
pub(crate) struct DbtTimes {
    /// The process.
    pub(crate) process: Duration,
    /// The graph of nodes, as dbt reports it.
    pub(crate) graph: Duration,
}

impl Drop for Project {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Project {
    fn empty(name: &'static str) -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("pgmill-dbt-{}-{n}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self { folder, name }
    }

    /// Copies the sample.
    pub(crate) fn sample() -> Self {
        let project = Self::empty("jaffle_shop");
        copy(&sample_folder(), &project.folder);
        project
    }

    /// Copies the project with the ways of building a relation that the sample does not have.
    pub(crate) fn variants() -> Self {
        let project = Self::empty("variants");
        copy(&root().join("tests/integrations/imports/variants"), &project.folder);
        let profiles = project.folder.join("profiles.yml");
        fs::copy(sample_folder().join("profiles.yml"), profiles).unwrap();
        project
    }

    /// Generates a project with this number of models.
    pub(crate) fn generated(models: usize) -> Self {
        let project = Self::empty("generated");
        let write = |path: &str, text: &str| {
            let path = project.folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "dbt_project.yml",
            "name: generated\nversion: \"1.0\"\nconfig-version: 2\nprofile: jaffle_shop\n\
             flags: {send_anonymous_usage_stats: false}\n",
        );
        let profiles = fs::read_to_string(sample_folder().join("profiles.yml")).unwrap();
        write("profiles.yml", &profiles);
        let mut random = Random(SEED);
        for n in 0..5 {
            write(&format!("seeds/seed_{n}.csv"), &rows(&mut random, 1, ROWS));
        }
        let mut kinds: Vec<&str> = Vec::new();
        for n in 0..models {
            let (kind, text) = model(&mut random, n, models, &kinds);
            kinds.push(kind);
            write(&format!("models/model_{n:03}.sql"), &text);
        }
        project
    }

    /// Adds rows to each seed; in the sample, also changes and removes orders; in the variants, also
    /// changes rows and models.
    pub(crate) fn change(&self, round: u64) {
        let replacements = self.folder.join(format!("round_{round}"));
        if replacements.exists() {
            copy(&replacements, &self.folder);
        }
        let mut random = Random(SEED + round);
        for entry in fs::read_dir(self.folder.join("seeds")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "csv") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            let last = lines.last().unwrap().clone();
            let (id, rest) = last.split_once(',').unwrap();
            let id: usize = id.parse().unwrap();
            if self.name == "generated" {
                lines.extend(rows(&mut random, id + 1, 10).lines().skip(1).map(str::to_owned));
            } else {
                lines.extend((1..=10).map(|n| format!("{},{rest}", id + n)));
            }
            if path.ends_with("events.csv") {
                lines.remove(usize::try_from(round).unwrap() + 10);
                for line in lines.iter_mut().skip(1).step_by(5) {
                    *line = line.replace(".5,l", ".75,m").replace("2026-01-", "2026-02-");
                }
            }
            if path.ends_with("raw_orders.csv") {
                lines.remove(usize::try_from(round).unwrap() + 20);
                for line in lines.iter_mut().skip(1).step_by(7) {
                    *line =
                        line.replace(",placed,", ",shipped,").replace(",shipped,", ",completed,");
                }
            }
            fs::write(&path, lines.join("\n") + "\n").unwrap();
        }
    }

    /// Runs dbt in the project. The relations are in `schema`, the artifacts in the folder `schema`.
    pub(crate) fn dbt(&self, database: &Database, schema: &str, arguments: &[&str]) -> DbtTimes {
        let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("tools/dbt");
        let url = database.url();
        let (login, place) = url.split_once("://").unwrap().1.rsplit_once('@').unwrap();
        let (user, password) = login.split_once(':').unwrap();
        let (address, name) = place.split_once('/').unwrap();
        let (host, port) = address.rsplit_once(':').unwrap();
        let begun = Instant::now();
        let output = Command::new(tools.join("bin/dbt"))
            .current_dir(&self.folder)
            .args(["--no-use-colors", arguments[0], "--threads", "8", "--target-path", schema])
            .args(&arguments[1..])
            .envs([("PGHOST", host), ("PGPORT", port), ("PGUSER", user), ("PGPASSWORD", password)])
            .envs([("PGDATABASE", name), ("DBT_SCHEMA", schema), ("DBT_PROFILES_DIR", ".")])
            .output()
            .unwrap_or_else(|error| panic!("{error}: {}; make dbt-check", tools.display()));
        let process = begun.elapsed();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "dbt {arguments:?} failed\n{printed}");
        let results = fs::read(self.folder.join(schema).join("run_results.json"));
        let results: Value = serde_json::from_slice(&results.unwrap()).unwrap();
        let graph = Duration::from_secs_f64(results["elapsed_time"].as_f64().unwrap());
        DbtTimes { process, graph }
    }

    /// Returns the path of the manifest that [`Self::dbt`] has written for a schema.
    pub(crate) fn manifest(&self, schema: &str) -> String {
        self.folder.join(schema).join("manifest.json").display().to_string()
    }
}

/// Returns the folder of the sample.
pub(crate) fn sample_folder() -> PathBuf {
    root().join("samples/jaffle_shop")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(name)).unwrap();
        } else if name != "target" && name != "logs" {
            copy(&entry.path(), &to.join(name));
        }
    }
}

/// Rows of a generated seed, with the header.
fn rows(random: &mut Random, first: usize, number: usize) -> String {
    let mut text = "id,k,v,label\n".to_owned();
    for id in first..first + number {
        let (k, v) = (random.below(1000), random.below(100_000));
        let label =
            if random.below(8) == 0 { String::new() } else { format!("l{}", random.below(50)) };
        let _ = writeln!(text, "{id},{k},{}.{:02},{label}", v / 100, v % 100);
    }
    text
}

/// Returns the materialization and the text of a generated model. Every fifth model reads a seed.
/// The others read one to three earlier models, at most one of which is not a table, because views
/// of views would become ever slower.
fn model(
    random: &mut Random,
    n: usize,
    models: usize,
    kinds: &[&'static str],
) -> (&'static str, String) {
    if n < models.div_ceil(5) {
        let kind = if models == 1 { "table" } else { "view" };
        let seed = n % 5;
        let text = format!(
            "{{{{ config(materialized='{kind}') }}}}\nselect id, k + {n} as k, cast(v as numeric) as v, label from {{{{ ref('seed_{seed}') }}}}\n"
        );
        return (kind, text);
    }
    let kind = match random.below(20) {
        0..=12 => "table",
        13..=15 => "view",
        16..=17 => "incremental",
        _ => "ephemeral",
    };
    let base = random.below(models.div_ceil(5));
    let tables: Vec<usize> =
        (0..n).filter(|it| matches!(kinds[*it], "table" | "incremental")).collect();
    let other = if tables.is_empty() { base } else { tables[random.below(tables.len())] };
    let key = if kind == "incremental" { ", unique_key='id'" } else { "" };
    let filter = if kind == "incremental" {
        "{% if is_incremental() %}\nwhere a.id > (select coalesce(max(id), 0) - 20 from {{ this }})\n{% endif %}\n"
    } else {
        ""
    };
    let (factor, shift) = (random.below(17) + 1, random.below(5));
    let text = format!(
        "{{{{ config(materialized='{kind}'{key}) }}}}\nselect a.id, (a.k * {factor} + coalesce(b.k, 0)) % 1009 as k,\n    \
         a.v + coalesce(b.v, 0) % 97 as v, md5(concat(a.label, b.label)) as label\n\
         from {{{{ ref('model_{base:03}') }}}} as a\nleft join {{{{ ref('model_{other:03}') }}}} as b on b.id = a.id + {shift}\n{filter}"
    );
    (kind, text)
}

/// A small generator of random numbers, the same on every machine.
struct Random(u64);

impl Random {
    /// Returns a number below the limit.
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}
