//! Compares jobs of `pgmill import dbt` with dbt itself: relations row by row, and times.
//!
//! Needs the packages of `tests/integrations/imports/tools.txt`; `make dbt-check` installs them and runs only
//! these tests.

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Database, Program, Worker};
use crate::integrations::imports::dbt_project::{DbtTimes, Project, sample_folder};
use crate::project::tidy::root;

/// The schemas of the relations that dbt and pgmill build.
const BY_DBT: &str = "by_dbt";
const BY_PGMILL: &str = "by_pgmill";

/// Compares the relations of both schemas, and of the schemas for failures of tests: their kinds,
/// columns, types, numbers of indexes, grants and rows. A snapshot whose name ends with `_history` has
/// times of its runs, so these are left out; `run_log` has times only.
const COMPARE: &str = "CREATE FUNCTION compare(OUT name text, OUT rows bigint, OUT differing bigint, OUT columns text)
RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE pair record; list text;
BEGIN
    FOR pair IN WITH relation AS (SELECT c.oid, c.relname, n.nspname FROM pg_class c
            JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'v', 'm') AND c.relname <> 'run_log')
        SELECT coalesce(d.relname, p.relname) AS relname, d.oid AS of_dbt, p.oid AS of_pgmill
        FROM (SELECT * FROM relation WHERE nspname ~ '^by_dbt') d
        FULL JOIN (SELECT * FROM relation WHERE nspname ~ '^by_pgmill') p
            ON p.relname = d.relname AND replace(p.nspname, 'by_pgmill', 'by_dbt') = d.nspname
    LOOP
        name := pair.relname; rows := 0; differing := 0; columns := 'missing';
        IF pair.of_dbt IS NOT NULL AND pair.of_pgmill IS NOT NULL THEN
            SELECT string_agg(DISTINCT columns_of.text, ' <> '), min(columns_of.names) INTO columns, list FROM (
                SELECT string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum)
                    || (SELECT format(' %s, %s indexes, granted: %s', c.relkind,
                        (SELECT count(*) FROM pg_index i WHERE i.indrelid = c.oid),
                        (SELECT string_agg(format('%s to %s', g.privilege_type, g.grantee::regrole), ', '
                                ORDER BY g.privilege_type, g.grantee::regrole::text)
                            FROM aclexplode(c.relacl) g WHERE g.grantee <> c.relowner))
                        FROM pg_class c WHERE c.oid = a.attrelid) AS text,
                    string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FILTER (WHERE a.attname NOT IN
                        ('dbt_scd_id', 'dbt_updated_at', 'dbt_valid_from', 'dbt_valid_to') OR name !~ '_history$') AS names
                FROM pg_attribute a WHERE a.attrelid IN (pair.of_dbt, pair.of_pgmill) AND a.attnum > 0 AND NOT a.attisdropped
                GROUP BY a.attrelid) AS columns_of;
            EXECUTE format('SELECT (SELECT count(*) FROM %2$s), (SELECT count(*) FROM (
                (SELECT %1$s FROM %2$s EXCEPT ALL SELECT %1$s FROM %3$s) UNION ALL
                (SELECT %1$s FROM %3$s EXCEPT ALL SELECT %1$s FROM %2$s)) AS d)',
                list, pair.of_dbt::regclass, pair.of_pgmill::regclass) INTO rows, differing;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$";

/// One round of one project.
struct Round {
    dbt: DbtTimes,
    /// From the start of `enqueue --job --wait` to its end.
    pgmill: Duration,
    /// The run, as the database measures it.
    run: Duration,
    relations: usize,
    rows: i64,
}

/// A project, and the jobs to compare: arguments of dbt, and types of nodes for pgmill.
struct Trial<'a> {
    database: &'a Database,
    project: Project,
    /// What dbt and pgmill do before the times are measured.
    prepare: Option<(&'a [&'a str], &'a str)>,
    measure: (&'a [&'a str], &'a str),
    /// The round that rebuilds everything.
    full_refresh: Option<u64>,
}

impl Trial<'_> {
    /// Imports the compiled project and runs the job. Returns the durations of `enqueue` and of the
    /// run.
    async fn run_job(&self, types: &str, full_refresh: &[&str]) -> (Duration, Duration) {
        let manifest = self.project.manifest(BY_PGMILL);
        let folder = self.project.folder.display().to_string();
        let job = format!("{} {types}", self.project.name);
        let arguments = ["import", "dbt", &manifest, "--project-dir", &folder, "--job", &job];
        let types = ["--resource-type", types];
        let limited = if types[1] == "all" { &types[..0] } else { &types[..] };
        let arguments = [&arguments[..], limited, full_refresh].concat();
        Program::pgmill(self.database, &arguments).succeeds().await;
        let again = Program::pgmill(self.database, &arguments).succeeds().await;
        assert!(again.contains("no changes"), "{again}");
        let begun = Instant::now();
        let arguments = ["--job", &job, "--wait", "--json"];
        let printed = Program::enqueue(self.database, &arguments).succeeds().await;
        let elapsed = begun.elapsed();
        let document: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(document["run"]["state"], "succeeded", "{printed}");
        let sql = "SELECT extract(epoch FROM finished_at - started_at)::float8 FROM mill.runs ORDER BY id DESC LIMIT 1";
        (elapsed, Duration::from_secs_f64(self.database.value(sql).await))
    }

    /// Runs one round; `first` decides who runs first.
    async fn round(&self, number: u64) -> Round {
        if number > 1 {
            self.project.change(number);
        }
        if let Some((arguments, types)) = self.prepare {
            self.project.dbt(self.database, BY_DBT, arguments);
            self.project.dbt(self.database, BY_PGMILL, &["compile"]);
            self.run_job(types, &[]).await;
        }
        let full_refresh =
            if self.full_refresh == Some(number) { &["--full-refresh"][..] } else { &[] };
        self.project.dbt(self.database, BY_PGMILL, &[&["compile"], full_refresh].concat());
        let (arguments, types) = self.measure;
        let arguments = &[arguments, full_refresh].concat()[..];
        let (dbt, (pgmill, run));
        if number.is_multiple_of(2) {
            (pgmill, run) = self.run_job(types, full_refresh).await;
            dbt = self.project.dbt(self.database, BY_DBT, arguments);
        } else {
            dbt = self.project.dbt(self.database, BY_DBT, arguments);
            (pgmill, run) = self.run_job(types, full_refresh).await;
        }
        let compared = self.database.rows("SELECT * FROM compare()", &[]).await;
        for row in &compared {
            let (name, columns): (String, String) = (row.get("name"), row.get("columns"));
            let differing: i64 = row.get("differing");
            assert!(differing == 0, "{differing} rows of {name} differ in round {number}");
            assert!(!columns.contains(" <> ") && columns != "missing", "{name}: {columns}");
        }
        let rows = compared.iter().map(|row| row.get::<_, i64>("rows")).sum();
        Round { dbt, pgmill, run, relations: compared.len(), rows }
    }
}

/// Runs the rounds of a project, and returns the lines of the table.
async fn measure(models: Option<usize>, rounds: u64) -> String {
    let database = Database::new().await;
    database.execute(COMPARE).await;
    let _worker = Worker::start(&database, &["--readers", "8", "--log", "warn"]);
    let trial = match models {
        None => Trial {
            database: &database,
            project: Project::sample(),
            prepare: None,
            measure: (&["build"], "all"),
            full_refresh: None,
        },
        Some(models) => Trial {
            database: &database,
            project: Project::generated(models),
            prepare: Some((&["seed"], "seed")),
            measure: (&["run"], "model"),
            full_refresh: None,
        },
    };
    let name = match models {
        None => "`samples/jaffle_shop`: 26 nodes and 2 hooks, `dbt build`".to_owned(),
        Some(1) => "1 generated model, `dbt run`".to_owned(),
        Some(models) => format!("{models} generated models, `dbt run`"),
    };
    let mut lines = String::new();
    for number in 1..=rounds {
        let round = trial.round(number).await;
        let seconds = |duration: Duration| format!("{:.2} s", duration.as_secs_f64());
        let ratio = |one: Duration, other: Duration| one.as_secs_f64() / other.as_secs_f64();
        let _ = writeln!(
            lines,
            "| {name} | {number} | {} | {} | {} | {} | {:.1} | {:.1} | {} | {} |",
            seconds(round.dbt.process),
            seconds(round.dbt.graph),
            seconds(round.pgmill),
            seconds(round.run),
            ratio(round.dbt.process, round.pgmill),
            ratio(round.dbt.graph, round.run),
            round.relations,
            round.rows,
        );
        println!("{}", lines.lines().last().unwrap_or_default());
    }
    lines
}

/// Builds the variants: a first build, one after changes, a rebuild, and one more build.
async fn compare_variants() {
    let database = Database::new().await;
    database.execute(COMPARE).await;
    let _worker = Worker::start(&database, &["--readers", "8", "--log", "warn"]);
    let trial = Trial {
        database: &database,
        project: Project::variants(),
        prepare: None,
        measure: (&["build"], "all"),
        full_refresh: Some(3),
    };
    for number in 1..=4 {
        let round = trial.round(number).await;
        println!("variants, round {number}: {} relations, {} rows", round.relations, round.rows);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs dbt: make dbt-check SHORT=1"]
async fn dbt_check_short() {
    compare_variants().await;
    measure(None, 2).await;
    measure(Some(30), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs dbt: make dbt-check"]
async fn dbt_check_full() {
    compare_variants().await;
    let mut lines = String::new();
    for models in [None, Some(1), Some(250)] {
        lines.push_str(&measure(models, 3).await);
    }
    let path = root().join("docs/dbt.md");
    let page = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- make dbt-check writes these lines -->\n", "<!-- end -->");
    let (before, rest) = page.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let head = "| project | round | dbt, process | dbt, nodes | pgmill, `enqueue --wait` | pgmill, run | ratio of processes | ratio of nodes and run | relations compared | rows |\n\
                |---|---|---|---|---|---|---|---|---|---|\n";
    fs::write(&path, format!("{before}{begin}{head}{lines}{end}{after}")).unwrap();
}

/// Writes the manifest that the other tests of the import read: that of the sample, without what
/// depends on the machine and without the macros of dbt that no test needs.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs dbt: cargo test -p tests -- --ignored writes_the_manifest"]
async fn writes_the_manifest() {
    let database = Database::empty().await;
    let project = Project::sample();
    project.dbt(&database, "jaffle_shop", &["compile"]);
    let text = fs::read_to_string(project.manifest("jaffle_shop")).unwrap();
    let text = text.replace(database.name(), "fixture_db");
    let mut manifest: Value = serde_json::from_str(&text).unwrap();
    let kept = ["metadata", "nodes", "sources", "unit_tests"];
    let macros = manifest["macros"]["macro.dbt.is_incremental"].clone();
    manifest.as_object_mut().unwrap().retain(|key, _| kept.contains(&key.as_str()));
    let name = &macros["name"];
    let reduced =
        serde_json::json!({ "name": name, "package_name": "dbt", "depends_on": { "macros": [] } });
    manifest["macros"] = serde_json::json!({ "macro.dbt.is_incremental": reduced });
    for key in
        ["invocation_id", "user_id", "project_id", "generated_at", "send_anonymous_usage_stats"]
    {
        manifest["metadata"].as_object_mut().unwrap().remove(key);
    }
    for node in manifest["nodes"].as_object_mut().unwrap().values_mut() {
        let node = node.as_object_mut().unwrap();
        for key in [
            "root_path",
            "created_at",
            "unrendered_config",
            "checksum",
            "docs",
            "compiled_path",
            "raw_code",
            "extra_ctes",
        ] {
            node.remove(key);
        }
    }
    manifest.sort_all_objects();
    let text = serde_json::to_string_pretty(&manifest).unwrap() + "\n";
    assert!(!text.contains(&sample_folder().display().to_string()));
    fs::write(root().join("tests/integrations/imports/manifest.json"), text).unwrap();
}
