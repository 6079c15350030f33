//! A target for a test, and workers that reach it.

use std::path::PathBuf;

use crate::harness::Database;

/// Flags of workers that notice a dead worker soon.
pub(crate) const FLAGS: [&str; 8] = [
    "--readers",
    "2",
    "--poll-interval",
    "50ms",
    "--heartbeat-interval",
    "500ms",
    "--orphan-timeout",
    "5s",
];

/// Table of effects: one row per execution of a task.
pub(crate) const EFFECTS: &str = "CREATE TABLE effect (task bigint NOT NULL)";
/// A statement with one effect.
pub(crate) const EFFECT: &str = "INSERT INTO effect SELECT current_setting('mill.task_id')::bigint";

/// A configuration file with targets, removed on drop.
pub(crate) struct Configuration {
    folder: PathBuf,
}

impl Configuration {
    /// Declares targets in the queue, makes their databases ready, and writes the configuration of
    /// workers: name, database and connection string of each.
    pub(crate) async fn new(queue: &Database, targets: &[(&str, &Database, String)]) -> Self {
        for (name, database, _) in targets {
            queue
                .execute(&format!(
                    "SELECT mill.set_target('{name}', allowed => ARRAY[current_user])"
                ))
                .await;
            queue::receipt::init(database.client(), &[]).await.unwrap();
            database.execute(EFFECTS).await;
        }
        let urls: Vec<_> = targets.iter().map(|(name, _, url)| (*name, url.clone())).collect();
        Self::of(queue, &urls)
    }

    /// Writes the configuration of workers: name and connection string of each target.
    pub(crate) fn of(queue: &Database, targets: &[(&str, String)]) -> Self {
        let folder = std::env::temp_dir().join(format!("pgmill-targets-{}", queue.name()));
        std::fs::create_dir_all(&folder).unwrap();
        let configuration = Self { folder };
        let mut text = String::new();
        for (name, url) in targets {
            configuration.point(name, url);
            let file = configuration.file(name);
            text += &format!("[targets.{name}]\nurl_file = {file:?}\nreaders = 4\n");
        }
        std::fs::write(configuration.folder.join("worker.toml"), text).unwrap();
        configuration
    }

    /// Returns the path of the file with the connection string of a target.
    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.join(format!("{name}.url")).to_str().unwrap().to_owned()
    }

    /// Changes the connection string of a target.
    pub(crate) fn point(&self, name: &str, url: &str) {
        std::fs::write(self.file(name), format!("{url}\n")).unwrap();
    }

    /// Returns the path of the configuration file.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join("worker.toml")
    }

    /// Returns the flags of workers with this configuration.
    pub(crate) fn flags(&self) -> Vec<String> {
        let path = self.path().to_str().unwrap().to_owned();
        FLAGS.map(str::to_owned).into_iter().chain(["--config".to_owned(), path]).collect()
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns references to flags.
pub(crate) fn as_flags(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// Returns the number of effects, and the number of tasks with an effect.
pub(crate) async fn effects(database: &Database) -> (i64, i64) {
    let row = &database.rows("SELECT count(*), count(DISTINCT task) FROM effect", &[]).await[0];
    (row.get(0), row.get(1))
}
