//! Checks the content of the image without a container engine. The script deploy/container/rootfs
//! writes the image's files to a folder. The programs of the image then run in a chroot of this
//! folder, under the container's account, against a private server.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::{Cluster, Options, Port};

use crate::documents::folder;
use crate::scratch::Scratch;
use crate::{Check, CommandOutput, Tools};

const SUBJECT: &str = "image";
const ACCOUNT: &str = "65532:65532";
const AS_ROOT: &str = "only root may change the root of a process";

pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let scratch = Scratch::new("image")?;
    let image = scratch.path().join("image");
    let programs = cluster::sibling_program("worker")?;
    let made = Command::new(folder().join("container/rootfs"))
        .args([programs.parent().unwrap_or(Path::new(".")), &image])
        .output()
        .context("deploy/container/rootfs does not start")?;
    let what = "rootfs: programs, their libraries, root certificates";
    if !made.status.success() {
        let output = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        return Ok(vec![Check::found(SUBJECT, what, "own", &[output])]);
    }
    let mut errors = check_rootfs(&image)?;
    if !rustix::process::getuid().is_root() {
        let skipped = |what| Check::unavailable(SUBJECT, what, "chroot", AS_ROOT);
        return Ok(vec![
            Check::found(SUBJECT, what, "own", &errors),
            skipped("a task runs in the image"),
        ]);
    }
    let root = Root { tools, image: &image };
    for program in ["worker", "pgmill", "enqueue"] {
        let output = root.run(&[program, "--version"], &[])?;
        let expected = format!("{program} {}", env!("CARGO_PKG_VERSION"));
        if !output.success || output.out.trim() != expected {
            errors.push(format!("{program} --version: {}", output.combined()));
        }
    }
    let rootfs = Check::found(SUBJECT, what, "chroot", &errors);
    let what =
        "like Compose: logins, init, a worker, its health, a schedule in a time zone, a task";
    let Ok(binaries) = tools.server() else {
        return Ok(vec![
            rootfs,
            Check::skipped(SUBJECT, what, "PostgreSQL", "cluster find --install"),
        ]);
    };
    let cluster = Cluster::start(Options { fsync: false, ..Options::new(binaries) })?;
    let Some(errors) = fleet(&root, &cluster)? else {
        return Ok(vec![
            rootfs,
            Check::skipped(SUBJECT, what, "psql", "apt-get install postgresql-client"),
        ]);
    };
    Ok(vec![rootfs, Check::found(SUBJECT, what, "chroot", &errors)])
}

/// Checks the existence of files whose absence would show only when they are needed.
fn check_rootfs(image: &Path) -> Result<Vec<String>> {
    let mut errors = Vec::new();
    let bundle = std::fs::read_to_string(image.join("etc/ssl/certs/ca-certificates.crt"))?;
    let roots = bundle.matches("BEGIN CERTIFICATE").count();
    if roots < 50 {
        errors.push(format!("only {roots} root certificates"));
    }
    for absent in ["bin/sh", "usr/bin/sh", "etc/shadow", "root"] {
        if image.join(absent).exists() {
            errors.push(format!("{absent} must not be in the image"));
        }
    }
    Ok(errors)
}

/// The image as a root directory.
struct Root<'a> {
    tools: &'a Tools,
    image: &'a Path,
}

impl Root<'_> {
    fn command(&self, words: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = self.tools.command("chroot");
        command.arg(format!("--userspec={ACCOUNT}")).arg(self.image);
        command.arg(format!("/usr/local/bin/{}", words[0])).args(&words[1..]);
        command.env_clear().envs(variables.iter().copied());
        command
    }

    fn run(&self, words: &[&str], variables: &[(&str, &str)]) -> Result<CommandOutput> {
        let output = self.tools.run(&mut self.command(words, variables), "")?;
        output.context("chroot is not available")
    }
}

/// Performs the steps of compose.yaml in order; `None` without psql.
fn fleet(root: &Root<'_>, cluster: &Cluster) -> Result<Option<Vec<String>>> {
    // The container engine writes this file and mounts the secrets.
    std::fs::write(root.image.join("etc/hosts"), "127.0.0.1 localhost postgres\n")?;
    let secrets = root.image.join("run/secrets");
    std::fs::create_dir_all(root.image.join("run"))?;
    let setup = Command::new(folder().join("compose/setup")).arg(&secrets).output()?;
    ensure!(setup.status.success(), "compose/setup: {}", String::from_utf8_lossy(&setup.stderr));
    // The engine mounts the folder with other permissions; the container sees only its files.
    let mut open = Command::new("chmod");
    ensure!(open.arg("755").arg(&secrets).status()?.success(), "chmod");
    let Some(output) = logins(root, cluster, &secrets)? else { return Ok(None) };
    ensure!(output.success, "compose/logins.sh: {}", output.combined());
    place(&secrets, cluster)?;
    let owner = [("PGSERVICEFILE", "/run/secrets/owner.conf"), ("DATABASE_URL", "service=owner")];
    let worker = [
        ("PGSERVICEFILE", "/run/secrets/worker.conf"),
        ("DATABASE_URL", "service=queue"),
        ("PGMILL_TASK_URL", "service=tasks"),
    ];
    let port = Port::reserve()?;
    let address = format!("127.0.0.1:{}", port.number());
    let timing = ["daily(03:15, zone: Europe/Berlin)", "SELECT current_user"];
    for words in [
        &["pgmill", "init"][..],
        &["pgmill", "schedule", "set", "nightly", "--timing", timing[0], "--statement", timing[1]],
        &["enqueue", timing[1]],
    ] {
        let output = root.run(words, &owner)?;
        ensure!(output.success, "{}: {}", words.join(" "), output.combined());
    }
    let mut running = root.command(&["worker", "--exit-when-idle=3s", "--http", &address], &worker);
    let running = std::thread::scope(|scope| -> Result<Vec<String>> {
        let ended = scope.spawn(|| root.tools.run(&mut running, ""));
        let mut errors = Vec::new();
        if let Some(why) = unhealthy(root, &address)? {
            errors.push(format!("pgmill health: {why}"));
        }
        let ended =
            ended.join().map_err(|_| anyhow::anyhow!("the worker's watcher panicked"))??;
        match ended {
            Some(output) if output.success => {}
            output => {
                errors.push(format!(
                    "worker: {}",
                    output.map(|it| it.combined()).unwrap_or_default()
                ));
            }
        }
        Ok(errors)
    });
    let mut errors = running?;
    let shown = root.run(&["pgmill", "task", "show", "1", "--json"], &owner)?;
    if !(shown.out.contains("\"succeeded\"") && shown.out.contains("\"tasks\"")) {
        errors.push(format!("no task succeeded with the login tasks: {}", shown.combined()));
    }
    Ok(Some(errors))
}

/// Runs the script that the server's container runs when it creates the database.
fn logins(root: &Root<'_>, cluster: &Cluster, secrets: &Path) -> Result<Option<CommandOutput>> {
    let bin = cluster.binaries().directory();
    let psql = |command: &mut Command| -> Result<Option<CommandOutput>> {
        let path = std::env::join_paths([bin, Path::new("/usr/bin"), Path::new("/bin")])?;
        command
            .env("PATH", path)
            .env("PGHOST", cluster.directory())
            .env("PGPORT", cluster.port().to_string());
        root.tools.run(command, "")
    };
    let mut create = Command::new("psql");
    let create = create.args(["-XqU", "postgres", "-c", "CREATE DATABASE app", "postgres"]);
    let Some(created) = psql(create)? else { return Ok(None) };
    ensure!(created.success, "{}", created.combined());
    let mut script = Command::new(folder().join("compose/logins.sh"));
    script
        .env("POSTGRES_USER", "postgres")
        .env("POSTGRES_DB", "app")
        .env("PGMILL_SECRETS", secrets);
    psql(&mut script)
}

/// Copies the service files, with the private server's port and superuser password.
fn place(secrets: &Path, cluster: &Cluster) -> Result<()> {
    let url = cluster.url("app");
    let password = url.split([':', '@']).nth(2).unwrap_or_default();
    let drawn = std::fs::read_to_string(secrets.join("owner-password"))?;
    for file in ["owner.conf", "worker.conf"] {
        let path = secrets.join(file);
        let text = std::fs::read_to_string(&path)?;
        let text = text.replace("port=5432", &format!("port={}", cluster.port()));
        std::fs::write(&path, text.replace(&drawn, password))?;
    }
    Ok(())
}

/// Returns why the worker does not become ready; `None` if it does.
fn unhealthy(root: &Root<'_>, address: &str) -> Result<Option<String>> {
    let begun = Instant::now();
    loop {
        let output = root.run(&["pgmill", "health", address], &[])?;
        if output.success {
            return Ok(None);
        }
        if begun.elapsed() > Duration::from_secs(20) {
            return Ok(Some(output.combined()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
