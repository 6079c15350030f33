//! The third-party crates inside the programs: a bill of materials (CycloneDX), and their licences.
//!
//! The tools for this purpose, cargo-cyclonedx and cargo-about, exist only as source, and take
//! minutes to build. `cargo metadata` and `Cargo.lock` have all the facts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::root;

/// The packages of the installed programs.
const PROGRAMS: [&str; 3] = ["pgmill-worker", "enqueue", "pgmill"];
/// Beginnings of the names of files with a licence or a notice.
const LICENCE_FILES: [&str; 5] = ["license", "licence", "copying", "notice", "copyright"];

/// The packages in the programs, and their dependencies.
struct Graph {
    /// Packages by id, as `cargo metadata` describes them.
    packages: BTreeMap<String, Value>,
    /// Ids of the dependencies of each package.
    edges: BTreeMap<String, BTreeSet<String>>,
    /// Checksums of the crates by name and version.
    checksums: BTreeMap<(String, String), String>,
}

/// Writes `sbom.cdx.json` and `third-party-licences.txt` into a folder; returns the number of
/// third-party crates.
///
/// # Errors
/// Returns an error if cargo fails, if a crate has no licence, or if the folder cannot be written
/// to.
pub fn write(folder: &Path) -> Result<usize> {
    let graph = Graph::read()?;
    let crates: Vec<&Value> =
        graph.packages.values().filter(|it| !it["source"].is_null()).collect();
    ensure!(!crates.is_empty(), "the programs have no dependencies");
    fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("{}", path.display()))
    };
    write("sbom.cdx.json", serde_json::to_string_pretty(&graph.bill_of_materials())? + "\n")?;
    write("third-party-licences.txt", licences(&crates)?)?;
    Ok(crates.len())
}

impl Graph {
    fn read() -> Result<Self> {
        let target = host()?;
        let flags = ["metadata", "--locked", "--format-version=1", "--filter-platform", &target];
        let metadata: Value = serde_json::from_str(&cargo(&flags)?)?;
        let packages: BTreeMap<&str, &Value> =
            list(&metadata["packages"]).map(|it| (text(&it["id"]), it)).collect();
        let nodes: BTreeMap<&str, &Value> =
            list(&metadata["resolve"]["nodes"]).map(|it| (text(&it["id"]), it)).collect();
        let mut graph = Self {
            packages: BTreeMap::new(),
            edges: BTreeMap::new(),
            checksums: checksums(&fs::read_to_string(root().join("Cargo.lock"))?),
        };
        let first = packages.iter().filter(|(_, package)| {
            package["source"].is_null() && PROGRAMS.contains(&text(&package["name"]))
        });
        let mut left: Vec<&str> = first.map(|(id, _)| *id).collect();
        while let Some(id) = left.pop() {
            if graph.packages.insert(id.to_owned(), packages[id].clone()).is_some() {
                continue;
            }
            // Dependencies of builds and tests are not in the programs.
            let linked = |it: &&Value| list(&it["dep_kinds"]).any(|kind| kind["kind"].is_null());
            let dependencies = list(&nodes[id]["deps"]).filter(linked).map(|it| text(&it["pkg"]));
            let dependencies: Vec<&str> = dependencies.collect();
            let owned = dependencies.iter().map(|&id| id.to_owned()).collect();
            graph.edges.insert(id.to_owned(), owned);
            left.extend(dependencies);
        }
        Ok(graph)
    }

    fn bill_of_materials(&self) -> Value {
        let component = |package: &Value| {
            let (name, version) = (text(&package["name"]), text(&package["version"]));
            let mut component = json!({
                "type": "library",
                "bom-ref": purl(package),
                "name": name,
                "version": version,
                "purl": purl(package),
                "licenses": [{ "expression": spdx(package) }],
            });
            if let Some(sum) = self.checksums.get(&(name.to_owned(), version.to_owned())) {
                component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
            }
            component
        };
        let components: Vec<Value> = self.packages.values().map(component).collect();
        let dependencies = self.edges.iter().map(|(id, edges)| {
            let on: BTreeSet<String> = edges.iter().map(|id| purl(&self.packages[id])).collect();
            json!({ "ref": purl(&self.packages[id]), "dependsOn": on })
        });
        let dependencies: Vec<Value> = dependencies.collect();
        json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "component": {
                    "type": "application",
                    "bom-ref": "pgmill",
                    "name": "pgmill",
                    "version": env!("CARGO_PKG_VERSION"),
                },
            },
            "components": components,
            "dependencies": dependencies,
        })
    }
}

/// Returns the licences of the crates: a list, then each text once with the crates that have it.
fn licences(crates: &[&Value]) -> Result<String> {
    let mut page = "The programs contain these crates:\n\n".to_owned();
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in crates {
        let name = format!("{} {}", text(&package["name"]), text(&package["version"]));
        let licence = spdx(package);
        ensure!(!licence.is_empty(), "{name} states no licence");
        page += &format!("{name}: {licence}\n");
        let manifest = Path::new(text(&package["manifest_path"]));
        let folder = manifest.parent().with_context(|| name.clone())?;
        for entry in fs::read_dir(folder).with_context(|| format!("{}", folder.display()))? {
            let path = entry?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            if path.is_file() && LICENCE_FILES.iter().any(|start| file.starts_with(start)) {
                let text =
                    fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
                let text = text.replace("\r\n", "\n").trim().to_owned();
                texts.entry(text).or_default().insert(name.clone());
            }
        }
    }
    let rule = "-".repeat(80);
    for (text, names) in texts {
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        page += &format!("\n{rule}\n{names}\n{rule}\n{text}\n");
    }
    Ok(page)
}

/// Returns the address of a package, as other tools name it.
fn purl(package: &Value) -> String {
    format!("pkg:cargo/{}@{}", text(&package["name"]), text(&package["version"]))
}

/// Returns the licence as an SPDX expression; old manifests separate alternatives by a slash.
fn spdx(package: &Value) -> String {
    text(&package["license"]).replace('/', " OR ").replace("  OR  ", " OR ")
}

/// Returns the checksums in the text of Cargo.lock.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let entry = |block: &str| {
        let value = |key: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
            Some(line?.trim_end_matches('"').to_owned())
        };
        Some(((value("name")?, value("version")?), value("checksum")?))
    };
    lock.split("[[package]]").filter_map(entry).collect()
}

/// Returns the name of the platform for which cargo builds.
fn host() -> Result<String> {
    let output = cargo(&["--version", "--verbose"])?;
    let host = output.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("cargo does not name its platform")?.to_owned())
}

fn cargo(arguments: &[&str]) -> Result<String> {
    let output = Command::new("cargo").args(arguments).current_dir(root()).output()?;
    ensure!(output.status.success(), "cargo: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bill_of_materials_has_what_is_linked_and_nothing_else() {
        let graph = Graph::read().unwrap();
        let bill = graph.bill_of_materials();
        let names: Vec<&str> = list(&bill["components"]).map(|it| text(&it["name"])).collect();
        for linked in ["tokio-postgres", "clap", "queue"] {
            assert!(names.contains(&linked), "{linked}");
        }
        // Dependencies of tests, and of other programs of this repository.
        for other in ["proptest", "hdrhistogram", "loadtest", "tests"] {
            assert!(!names.contains(&other), "{other}");
        }
        let refs: BTreeSet<&str> =
            list(&bill["components"]).map(|it| text(&it["bom-ref"])).collect();
        assert_eq!(refs.len(), names.len());
        for component in list(&bill["components"]) {
            let third_party = component["hashes"].is_array();
            let own = PROGRAMS.contains(&text(&component["name"])) || !third_party;
            assert!(third_party || own, "{component}");
            assert!(!text(&component["licenses"][0]["expression"]).is_empty(), "{component}");
        }
        for dependency in list(&bill["dependencies"]) {
            assert!(
                list(&dependency["dependsOn"]).all(|it| refs.contains(text(it))),
                "{dependency}"
            );
        }
    }

    #[test]
    fn checksums_are_read_from_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"ff\"\n\n\
                    [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        let read = checksums(lock);
        assert_eq!(read.len(), 1);
        assert_eq!(read[&("a".to_owned(), "1.0.0".to_owned())], "ff");
    }

    #[test]
    fn a_slash_in_a_licence_means_or() {
        assert_eq!(spdx(&json!({ "license": "MIT/Apache-2.0" })), "MIT OR Apache-2.0");
        assert_eq!(spdx(&json!({ "license": "MIT / Apache-2.0" })), "MIT OR Apache-2.0");
    }
}
