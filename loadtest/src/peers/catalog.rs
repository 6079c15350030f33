//! The peers: version, files of the adapter, settings. How the settings were chosen is in
//! `loadtest/peers/README.md`.

/// What installs a peer, and runs its adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kit {
    /// npm; Node.js itself comes from there too.
    Node,
    /// pip, in a virtual environment.
    Python,
    /// cargo.
    Rust,
}

/// Another job queue.
#[derive(Debug)]
pub(crate) struct Peer {
    /// As its package is called. `graphile-worker` (npm) and `graphile_worker` (crates.io) are two.
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kit: Kit,
    /// Path in its folder, text.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// How often a job's effect happens, and what fails when a worker dies.
    pub(crate) promise: &'static str,
    pub(crate) backlog: &'static [Variant],
    pub(crate) pickup: &'static [Variant],
    pub(crate) submit: &'static [Variant],
}

/// A way to run a peer.
#[derive(Debug)]
pub(crate) struct Variant {
    /// Behind the peer's name; may be empty.
    pub(crate) label: &'static str,
    /// For its adapter: a JSON object.
    pub(crate) settings: &'static str,
    /// It gets one in so many of the tasks: the slow ones need fewer for the same time.
    pub(crate) share: i64,
}

const fn variant(label: &'static str, settings: &'static str) -> Variant {
    Variant { label, settings, share: 1 }
}

impl Peer {
    /// `pg-boss 12.35.0, transactional`
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
    kit: Kit::Node,
    files: &[
        ("package.json", file!("graphile-worker/package.json")),
        ("adapter.mjs", file!("graphile-worker/adapter.mjs")),
        ("measure.mjs", file!("measure/measure.mjs")),
    ],
    promise: "at least once; what a dead worker held waits up to four hours",
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
    kit: Kit::Node,
    files: &[
        ("package.json", file!("pg-boss/package.json")),
        ("adapter.mjs", file!("pg-boss/adapter.mjs")),
        ("measure.mjs", file!("measure/measure.mjs")),
    ],
    promise: "at least once, exactly once in its transactional mode, where all jobs of a batch \
              succeed or fail together; what a dead worker held waits 15 minutes",
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
    kit: Kit::Rust,
    files: &[
        ("Cargo.toml", file!("graphile_worker/Cargo.toml")),
        ("src/main.rs", file!("graphile_worker/src/main.rs")),
        ("src/measure.rs", file!("measure/measure.rs")),
    ],
    promise: "at least once; what a dead worker held waits up to four hours, five minutes where \
              recovery is switched on",
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
    kit: Kit::Rust,
    files: &[
        ("Cargo.toml", file!("awa/Cargo.toml")),
        ("src/main.rs", file!("awa/src/main.rs")),
        ("src/measure.rs", file!("measure/measure.rs")),
    ],
    promise: "at least once; a dead worker's jobs come back after 90 seconds",
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
    kit: Kit::Python,
    files: &[
        ("requirements.txt", file!("procrastinate/requirements.txt")),
        ("adapter.py", file!("procrastinate/adapter.py")),
        ("measure.py", file!("measure/measure.py")),
    ],
    promise: "at least once; what a dead worker held stays there unless the user writes a task \
              that retries it",
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
    kit: Kit::Python,
    files: &[
        ("requirements.txt", file!("pgqueuer/requirements.txt")),
        ("adapter.py", file!("pgqueuer/adapter.py")),
        ("measure.py", file!("measure/measure.py")),
    ],
    promise: "at least once; a dead worker's jobs come back after 30 seconds",
    backlog: &[Variant {
        label: "batches",
        settings: r#"{"managers": 1, "batch": 1000, "pool": 16}"#,
        share: 2,
    }],
    pickup: &[variant("", r#"{"managers": 1, "batch": 10, "pool": 16}"#)],
    submit: &[variant("", "{}")],
};

/// All of them.
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
