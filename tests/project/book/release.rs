//! The version of a release: every file that states it agrees with the workspace. Packages that are
//! published on their own contain the licences.

use std::fs;

use crate::project::tidy::{files, root};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Texts in front of a version: file, text, number of places.
const PLACES: [(&str, &str, usize); 11] = [
    ("Cargo.toml", "\"console@", 1),
    ("tests/fuzz/Cargo.toml", "\nversion = \"", 1),
    ("deploy/helm/pgmill/Chart.yaml", "\nversion: ", 1),
    ("deploy/helm/pgmill/Chart.yaml", "\nappVersion: ", 1),
    ("deploy/helm/values/queues.yaml", "tag: ", 1),
    ("deploy/kubernetes/base/kustomization.yaml", "newTag: ", 1),
    ("deploy/kubernetes/base/worker.yaml", "image: pgmill:", 1),
    ("deploy/kubernetes/base/init.yaml", "image: pgmill:", 1),
    ("deploy/compose/compose.yaml", "image: pgmill:", 1),
    ("deploy/container/Dockerfile", "image.version=\"", 1),
    ("docs/deploy.md", "-t pgmill:", 1),
];

/// Manifests of clients in other languages, which are released together with the programs.
const CLIENTS: [(&str, &str); 2] = [
    ("clients/python/pyproject.toml", "\nversion = \""),
    ("clients/typescript/package.json", "\"version\": \""),
];

/// Returns the versions behind a text.
fn versions<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || ".-+".contains(character);
    let version = |rest: &'a str| rest.split(|character| !is_part(character)).next().unwrap();
    text.split(before).skip(1).map(version).collect()
}

#[test]
fn every_file_states_the_version_of_the_workspace() {
    for (file, before, count) in PLACES {
        let text = fs::read_to_string(root().join(file)).unwrap();
        assert_eq!(versions(&text, before), vec![VERSION; count], "{file}: {before}");
    }
    for (file, before) in CLIENTS {
        if let Ok(text) = fs::read_to_string(root().join(file)) {
            assert_eq!(versions(&text, before).first(), Some(&VERSION), "{file}");
        }
    }
}

#[test]
fn every_client_contains_the_licences() {
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let text = |path: &str| fs::read_to_string(root().join(path).join(licence)).unwrap();
        for client in ["clients/python", "clients/typescript", "clients/rust"] {
            assert!(text(client) == text("."), "{client}/{licence} differs from {licence}");
        }
    }
}

#[test]
fn no_other_file_names_another_image() {
    let mut found = 0;
    for (path, text) in
        files(&["deploy", "docs", "README.md"], &[".yaml", ".yml", ".md", "Dockerfile"])
    {
        for version in versions(&text, "pgmill:") {
            if version.starts_with(|first: char| first.is_ascii_digit()) {
                assert_eq!(version, VERSION, "{path}");
                found += 1;
            }
        }
    }
    assert!(found >= 5, "{found} images");
}

#[test]
fn every_crate_has_the_version_of_the_workspace() {
    for (path, text) in files(&["."], &["Cargo.toml"]) {
        // The programs of other queues have versions of their own.
        if !path.contains("loadtest/peers/") && text.contains("[package]") {
            let own = text.contains("\nversion.workspace = true\n")
                || path.contains("tests/fuzz/Cargo.toml");
            assert!(own, "{path} states its own version");
        }
    }
}

#[test]
fn the_changelog_begins_with_the_version() {
    let text = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let heading = text.lines().find(|line| line.starts_with("## ")).unwrap();
    assert!(heading.contains(VERSION), "{heading} does not name {VERSION}");
    let schema = format!("schema version {}", queue::schema::VERSION);
    assert!(heading.contains(&schema), "{heading} does not name {schema}");
}
