//! The checks: one file per subject, in the order of the checks.

mod database;
mod flags;
mod kubernetes;
mod lint;
mod monitoring;
mod packages;

use crate::Subject;

use database::{failover, pgbouncer};
use kubernetes::{helm, kustomize};
use monitoring::{grafana, prometheus, runbooks};
use packages::{containers, debian, image, man_pages, systemd};

/// All subjects.
pub(crate) const SUBJECTS: &[Subject] = &[
    Subject { name: "prometheus", run: prometheus::run },
    Subject { name: "grafana", run: grafana::run },
    Subject { name: "runbooks", run: runbooks::run },
    Subject { name: "systemd", run: systemd::run },
    Subject { name: "man-pages", run: man_pages::run },
    Subject { name: "debian", run: debian::run },
    Subject { name: "lint", run: lint::run },
    Subject { name: "flags", run: flags::run },
    Subject { name: "containers", run: containers::run },
    Subject { name: "image", run: image::run },
    Subject { name: "kubernetes", run: kustomize::run },
    Subject { name: "helm", run: helm::run },
    Subject { name: "pgbouncer", run: pgbouncer::run },
    Subject { name: "failover", run: failover::run },
];
