//! The peers: `catalog.json` has versions and settings, `loadtest/peers/README.md` describes how
//! the settings were chosen.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

/// Package manager of a peer, which also determines how the adapter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PackageManager {
    /// npm, which also provides Node.js itself.
    Npm,
    /// pip, in a virtual environment.
    Pip,
    /// cargo.
    Cargo,
}

/// Another job queue.
#[derive(Debug, Deserialize)]
pub(crate) struct Peer {
    /// Package name. `graphile-worker` (npm) and `graphile_worker` (crates.io) are different peers.
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) package_manager: PackageManager,
    /// Text for the report: what the peer guarantees about the effect of a job, and how it recovers
    /// from a dead worker.
    pub(crate) promise: String,
    pub(crate) backlog: Vec<Variant>,
    pub(crate) pickup: Vec<Variant>,
}

/// A configuration of a peer.
#[derive(Debug, Deserialize)]
pub(crate) struct Variant {
    /// Suffix of the peer's name.
    #[serde(default)]
    label: String,
    /// Settings for the adapter.
    pub(crate) settings: Value,
    /// Divisor for the number of tasks: slow peers run fewer tasks in the same time.
    #[serde(default = "full_share")]
    pub(crate) share: i64,
}

fn full_share() -> i64 {
    1
}

impl Peer {
    /// Formats the case name: `pg-boss 12.35.0, transactional`
    pub(crate) fn case(&self, variant: &Variant) -> String {
        let comma = if variant.label.is_empty() { "" } else { ", " };
        format!("{} {}{comma}{}", self.name, self.version, variant.label)
    }

    /// The files of the adapter: path within its folder, and content. The first one names the
    /// version.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let shared = match self.package_manager {
            PackageManager::Npm => ("measure.mjs", include_str!("../../peers/measure/measure.mjs")),
            PackageManager::Pip => ("measure.py", include_str!("../../peers/measure/measure.py")),
            PackageManager::Cargo => {
                ("src/measure.rs", include_str!("../../peers/measure/measure.rs"))
            }
        };
        let own = FILES.iter().filter(|(folder, ..)| *folder == self.name);
        own.map(|(_, path, text)| (*path, *text)).chain([shared])
    }
}

macro_rules! files {
    ($($folder:literal: $($path:literal)*;)*) => {
        &[$($(($folder, $path, include_str!(concat!("../../peers/", $folder, "/", $path)))),*),*]
    };
}

/// Folder, path and content of the files of the adapters.
const FILES: &[(&str, &str, &str)] = files!(
    "graphile-worker": "package.json" "adapter.mjs";
    "pg-boss": "package.json" "adapter.mjs";
    "graphile_worker": "Cargo.toml" "src/main.rs";
    "awa": "Cargo.toml" "src/main.rs";
    "procrastinate": "requirements.txt" "adapter.py";
    "pgqueuer": "requirements.txt" "adapter.py";
);

/// All peers.
pub(crate) static PEERS: LazyLock<Vec<Peer>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../peers/catalog.json")).expect("a test parses it")
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_objects_and_names_are_told_apart() {
        for peer in PEERS.iter() {
            for variants in [&peer.backlog, &peer.pickup] {
                let mut names: Vec<String> = variants.iter().map(|it| peer.case(it)).collect();
                names.dedup();
                assert_eq!(names.len(), variants.len(), "{}", peer.name);
                assert!(variants.iter().all(|it| it.settings.is_object() && it.share > 0));
            }
        }
    }

    #[test]
    fn versions_are_those_of_the_manifests() {
        for peer in PEERS.iter() {
            let (_, manifest) = peer.files().next().unwrap();
            let line = manifest.lines().map(str::trim).find(|line| {
                line.trim_start_matches('"').starts_with(&peer.name) && !line.contains("peer-")
            });
            assert!(line.unwrap().contains(&peer.version), "{}", peer.name);
            assert_eq!(peer.files().count(), 3);
        }
    }
}
