//! The subjects, in the order of the checks.

mod containers;
mod debian;
mod flags;
mod grafana;
mod helm;
mod image;
mod kubernetes;
mod lint;
mod man_pages;
mod manifests;
mod objects;
mod prometheus;
mod rules;
mod runbooks;
mod systemd;

pub(crate) use rules::write;

use crate::Subject;

mod failover;
mod pgbouncer;

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
    Subject { name: "rules", run: rules::run },
    Subject { name: "kubernetes", run: kubernetes::run },
    Subject { name: "helm", run: helm::run },
    Subject { name: "pgbouncer", run: pgbouncer::run },
    Subject { name: "failover", run: failover::run },
];
