//! The peers: version, adapter files, settings. `loadtest/peers/README.md` describes how the
//! settings were chosen.

/// Package manager of a peer, which also determines how the adapter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackageManager {
    /// npm, which also provides Node.js itself.
    Npm,
    /// pip, in a virtual environment.
    Pip,
    /// cargo.
    Cargo,
}

/// Another job queue.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Package name. `graphile-worker` (npm) and `graphile_worker` (crates.io) are different peers.
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) package_manager: PackageManager,
    /// Path within the adapter's folder, and content.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// Text for the report: what the peer guarantees about the effect of a job, and how it recovers
    /// from a dead worker.
    pub(crate) promise: &'static str,
    pub(crate) backlog: &'static [Variant],
    pub(crate) pickup: &'static [Variant],
    pub(crate) submit: &'static [Variant],
}

/// A configuration of a peer.
#[derive(Debug)]
pub(crate) struct Variant {
    /// Suffix of the peer's name; may be empty.
    pub(crate) label: &'static str,
    /// Settings for the adapter: a JSON object.
    pub(crate) settings: &'static str,
    /// Divisor for the number of tasks: slow peers run fewer tasks in the same time.
    pub(crate) share: i64,
}

const fn variant(label: &'static str, settings: &'static str) -> Variant {
    Variant { label, settings, share: 1 }
}

impl Peer {
    /// Formats the case name: `pg-boss 12.35.0, transactional`
    pub(crate) fn case(&self, variant: &Variant) -> String {
        let comma = if variant.label.is_empty() { "" } else { ", " };
        format!("{} {}{comma}{}", self.name, self.version, variant.label)
    }
}

macro_rules! file {
    ($path:literal) => {
        include_str!(concat!("../../peers/", $path))
    };
}

const GRAPHILE_WORKER: Peer = Peer {
    name: "graphile-worker",
    version: "0.18.0",
    package_manager: PackageManager::Npm,
    files: &[
        ("package.json", file!("graphile-worker/package.json")),
        ("adapter.mjs", file!("graphile-worker/adapter.mjs")),
        ("measure.mjs", file!("measure/measure.mjs")),
    ],
    promise: "at least once; a dead worker's jobs wait up to four hours",
    backlog: &[
        Variant { label: "defaults", settings: r#"{"concurrency": 16, "pool": 16}"#, share: 3 },
        variant(
            "local queue, batched completion",
            r#"{"concurrency": 32, "localQueue": 500, "batchDelay": 0, "pool": 32}"#,
        ),
    ],
    pickup: &[
        variant("defaults", r#"{"concurrency": 16, "pool": 16}"#),
        variant(
            "local queue, batched completion",
            r#"{"concurrency": 32, "localQueue": 500, "batchDelay": 0, "pool": 32}"#,
        ),
    ],
    submit: &[variant("", "{}")],
};

const PG_BOSS: Peer = Peer {
    name: "pg-boss",
    version: "12.35.0",
    package_manager: PackageManager::Npm,
    files: &[
        ("package.json", file!("pg-boss/package.json")),
        ("adapter.mjs", file!("pg-boss/adapter.mjs")),
        ("measure.mjs", file!("measure/measure.mjs")),
    ],
    promise: "at least once, exactly once in its transactional mode, where all jobs of a batch \
              succeed or fail together; a dead worker's jobs wait 15 minutes",
    backlog: &[
        variant(
            "batches",
            r#"{"batch": 500, "workers": 2, "workerPool": 2, "pool": 32, "notify": true}"#,
        ),
        variant(
            "transactional batches",
            r#"{"batch": 500, "workers": 4, "workerPool": 7, "pool": 1, "notify": true,
                "transactional": true}"#,
        ),
    ],
    pickup: &[variant(
        "notify",
        r#"{"batch": 1, "workers": 1, "workerPool": 4, "pool": 4, "notify": true}"#,
    )],
    submit: &[variant("polled", r#"{"notify": false}"#), variant("notify", r#"{"notify": true}"#)],
};

const GRAPHILE_WORKER_RUST: Peer = Peer {
    name: "graphile_worker",
    version: "0.14.1",
    package_manager: PackageManager::Cargo,
    files: &[
        ("Cargo.toml", file!("graphile_worker/Cargo.toml")),
        ("src/main.rs", file!("graphile_worker/src/main.rs")),
        ("src/measure.rs", file!("measure/measure.rs")),
    ],
    promise: "at least once; a dead worker's jobs wait up to four hours, five minutes if \
              recovery is enabled",
    backlog: &[variant(
        "local queue, batched completion",
        r#"{"concurrency": 32, "local_queue": 2000, "batch_delay_ms": 5, "pool": 32}"#,
    )],
    pickup: &[
        variant("defaults", r#"{"concurrency": 16, "pool": 16}"#),
        variant(
            "local queue, batched completion",
            r#"{"concurrency": 32, "local_queue": 2000, "batch_delay_ms": 5, "pool": 32}"#,
        ),
    ],
    submit: &[variant("", "{}")],
};

const AWA: Peer = Peer {
    name: "awa",
    version: "0.6.9",
    package_manager: PackageManager::Cargo,
    files: &[
        ("Cargo.toml", file!("awa/Cargo.toml")),
        ("src/main.rs", file!("awa/src/main.rs")),
        ("src/measure.rs", file!("measure/measure.rs")),
    ],
    promise: "at least once; a dead worker's jobs are pending again after 90 seconds",
    backlog: &[variant(
        "4 partitions",
        r#"{"workers": 256, "partitions": 4, "worker_pool": 10, "pool": 32}"#,
    )],
    pickup: &[variant("", r#"{"workers": 50, "pool": 32}"#)],
    submit: &[variant("", "{}")],
};

const PROCRASTINATE: Peer = Peer {
    name: "procrastinate",
    version: "3.10.0",
    package_manager: PackageManager::Pip,
    files: &[
        ("requirements.txt", file!("procrastinate/requirements.txt")),
        ("adapter.py", file!("procrastinate/adapter.py")),
        ("measure.py", file!("measure/measure.py")),
    ],
    promise: "at least once; a dead worker's jobs stay claimed unless the user schedules a task \
              that retries them",
    backlog: &[Variant {
        label: "",
        settings: r#"{"concurrency": 16, "worker_pool": 16, "pool": 16}"#,
        share: 10,
    }],
    pickup: &[variant("", r#"{"concurrency": 1, "worker_pool": 4, "pool": 4}"#)],
    submit: &[variant("", "{}")],
};

const PGQUEUER: Peer = Peer {
    name: "pgqueuer",
    version: "1.6.0",
    package_manager: PackageManager::Pip,
    files: &[
        ("requirements.txt", file!("pgqueuer/requirements.txt")),
        ("adapter.py", file!("pgqueuer/adapter.py")),
        ("measure.py", file!("measure/measure.py")),
    ],
    promise: "at least once; a dead worker's jobs are pending again after 30 seconds",
    backlog: &[Variant {
        label: "batches",
        settings: r#"{"managers": 1, "batch": 1000, "pool": 16}"#,
        share: 2,
    }],
    pickup: &[variant("", r#"{"managers": 1, "batch": 10, "pool": 16}"#)],
    submit: &[variant("", "{}")],
};

/// All peers.
pub(crate) const PEERS: &[&Peer] =
    &[&GRAPHILE_WORKER, &PG_BOSS, &GRAPHILE_WORKER_RUST, &AWA, &PROCRASTINATE, &PGQUEUER];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_objects_and_names_are_told_apart() {
        for peer in PEERS {
            for variants in [peer.backlog, peer.pickup, peer.submit] {
                let mut names = Vec::new();
                for variant in variants {
                    let settings: serde_json::Value =
                        serde_json::from_str(variant.settings).unwrap();
                    assert!(settings.is_object() && variant.share > 0);
                    names.push(peer.case(variant));
                }
                names.dedup();
                assert_eq!(names.len(), variants.len(), "{}", peer.name);
            }
        }
    }

    #[test]
    fn versions_are_those_of_the_manifests() {
        for peer in PEERS {
            let (_, manifest) = peer.files[0];
            let line = manifest.lines().map(str::trim).find(|line| {
                line.trim_start_matches('"').starts_with(peer.name) && !line.contains("peer-")
            });
            assert!(line.unwrap().contains(peer.version), "{}", peer.name);
        }
    }
}
