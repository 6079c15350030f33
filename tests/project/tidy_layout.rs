//! Layout checks: module heads that list their files, no import circles inside a crate, and each crate compiled once.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::project::tidy::{PRODUCT, files, root, without_tests};

/// Number of submodules from which on the head of a module lists them.
const LISTED_FROM: usize = 3;

/// A reader finds the file of a task in the head of its module, as in `enqueue/src/lib.rs`.
#[test]
fn the_head_of_a_module_lists_its_files() {
    let mut found = Vec::new();
    let mut listed = 0;
    for (path, text) in files(PRODUCT, &[".rs"]) {
        let modules: Vec<&str> = without_tests(&text).lines().filter_map(declared_module).collect();
        if modules.len() < LISTED_FROM || path.contains("/tests/") {
            continue;
        }
        let head: Vec<&str> = text.lines().filter(|line| line.starts_with("//!")).collect();
        let head = head.join("\n");
        listed += modules.len();
        let missing = modules.into_iter().filter(|it| !head.contains(&format!("`{it}`")));
        found.extend(missing.map(|it| format!("{path}: {it}")));
    }
    assert!(listed > 300, "the scan finds {listed} modules");
    assert!(found.is_empty(), "missing in the heads of their modules:\n  {}", found.join("\n  "));
}

/// Returns the name of the file that a line declares as a module.
fn declared_module(line: &str) -> Option<&str> {
    let rest = match line.strip_prefix("pub") {
        Some(rest) => rest.strip_prefix("(crate)").unwrap_or(rest).strip_prefix(' ')?,
        None => line,
    };
    rest.strip_prefix("mod ")?.strip_suffix(';')
}

/// Number of source files above which a folder may hold two things, which is only printed: a name that was made up for a
/// limit is worse than a long list. Half as many again are too many.
const MANY_FILES: usize = 20;
const MAX_FILES: usize = 30;

#[test]
fn no_folder_holds_very_many_source_files() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (path, _) in files(&["."], &[".rs"]) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        *counts.entry(folder.to_owned()).or_default() += 1;
    }
    assert!(counts.len() > 50, "the scan finds nothing");
    counts.retain(|_, count| *count > MANY_FILES);
    println!("folders with more than {MANY_FILES} source files: {counts:?}");
    counts.retain(|_, count| *count > MAX_FILES);
    assert!(counts.is_empty(), "folders with more than {MAX_FILES} source files: {counts:?}");
}

/// Module paths of a crate without the crate's name; the root is empty.
type Module = Vec<String>;

/// Returns the modules of each crate, with their texts.
fn modules() -> BTreeMap<String, Vec<(Module, String)>> {
    let mut crates: BTreeMap<String, Vec<(Module, String)>> = BTreeMap::new();
    for (path, text) in files(&["."], &[".rs"]) {
        let Some((name, inside)) = path.split_once("src/") else { continue };
        let mut module: Module = inside
            .trim_end_matches(".rs")
            .split('/')
            .map(str::to_owned)
            .filter(|part| part != "lib" && part != "mod")
            .collect();
        if module == ["main"] {
            module.clear();
        }
        crates.entry(name.to_owned()).or_default().push((module, text));
    }
    assert!(crates.contains_key("worker/"), "the scan finds nothing");
    crates
}

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let circles: Vec<String> =
        modules().iter().filter_map(|(name, modules)| circle(name, modules)).collect();
    assert!(circles.is_empty(), "import circles:\n  {}", circles.join("\n  "));
}

/// Of two modules at the top level of a crate, one is below the other.
#[test]
fn no_two_top_level_modules_import_each_other() {
    let mut found = Vec::new();
    for (name, modules) in modules() {
        let imports = top_level_imports(&modules);
        let mutual = imports.iter().filter(|(a, b)| a < b && imports.contains(&(*b, *a)));
        found.extend(mutual.map(|(a, b)| format!("{name}: {a} and {b}")));
    }
    assert!(found.is_empty(), "modules that import each other:\n  {}", found.join("\n  "));
}

/// Returns which module at the top level imports which other one.
fn top_level_imports(modules: &[(Module, String)]) -> BTreeSet<(&str, &str)> {
    let names: BTreeSet<&str> =
        modules.iter().filter_map(|(module, _)| module.first().map(String::as_str)).collect();
    let mut imports = BTreeSet::new();
    for (module, text) in modules {
        let Some(from) = module.first().filter(|_| module.last().is_some_and(|it| it != "tests"))
        else {
            continue;
        };
        for path in paths(module, text) {
            let to = path.first().and_then(|to| names.get(to.as_str()));
            imports.extend(to.filter(|to| **to != from).map(|to| (from.as_str(), *to)));
        }
    }
    imports
}

/// Returns one circle of imports in a crate.
fn circle(name: &str, modules: &[(Module, String)]) -> Option<String> {
    let known: BTreeSet<&Module> = modules.iter().map(|(module, _)| module).collect();
    let imports: BTreeMap<&Module, BTreeSet<&Module>> = modules
        .iter()
        .map(|(module, text)| {
            let imported = paths(module, text).into_iter().filter_map(|path| {
                let owners = (0..=path.len()).rev().map(|end| path[..end].to_vec());
                let owner = owners.into_iter().find_map(|owner| known.get(&owner).copied());
                owner.filter(|owner| *owner != module)
            });
            (module, imported.collect())
        })
        .collect();
    let mut finished = BTreeSet::new();
    let mut way = Vec::new();
    modules.iter().find_map(|(module, _)| follow(module, &imports, &mut way, &mut finished)).map(
        |circle| {
            let shown: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            format!("{name}: {}", shown.join(" > "))
        },
    )
}

fn follow<'a>(
    module: &'a Module,
    imports: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
    way: &mut Vec<&'a Module>,
    finished: &mut BTreeSet<&'a Module>,
) -> Option<Vec<&'a Module>> {
    if let Some(start) = way.iter().position(|earlier| *earlier == module) {
        return Some([&way[start..], &[module]].concat());
    }
    if finished.contains(module) {
        return None;
    }
    way.push(module);
    let found = imports[module].iter().find_map(|next| follow(next, imports, way, finished));
    way.pop();
    finished.insert(module);
    found
}

/// Returns every path in a file that begins with `crate`, `self` or `super`, as a path from the
/// crate's root.
fn paths(module: &[String], text: &str) -> Vec<Module> {
    let code: Vec<&str> = without_tests(text)
        .lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for (word, root) in [("crate::", 0), ("self::", module.len()), ("super::", module.len())] {
        for (at, _) in code.match_indices(word) {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let up = usize::from(word == "super::");
            let base = module[..root.saturating_sub(up)].to_vec();
            expand(&base, &code[at + word.len()..], &mut found);
        }
    }
    found
}

/// Adds the paths of a use tree: `a::b`, `a::{b, c::d}`, `super::a`.
fn expand(base: &[String], tree: &str, found: &mut Vec<Module>) {
    let mut path = base.to_vec();
    let mut rest = tree;
    loop {
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        match &rest[..end] {
            "" => break,
            "super" => drop(path.pop()),
            name => path.push(name.to_owned()),
        }
        let Some(next) = rest[end..].strip_prefix("::") else { break };
        rest = next;
    }
    let Some(group) = rest.strip_prefix('{') else { return found.push(path) };
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                let part = group[start..at].trim();
                if !part.is_empty() {
                    expand(&path, part, found);
                }
                start = at + 1;
                if c == '}' {
                    return;
                }
            }
            _ => {}
        }
    }
}

/// Returns the crates of a build with their features, without or with those that only tests use.
fn crates(edges: &str) -> BTreeSet<String> {
    let output = Command::new("cargo")
        .args(["tree", "--workspace", "--locked", "--offline", "--prefix=none"])
        .args(["--format={p} {f}", "--edges", edges])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

/// With other features, `cargo test` compiles a crate, and all crates that use it, after `cargo build`
/// has compiled them.
#[test]
fn tests_compile_no_crate_a_second_time() {
    let for_tests = crates("normal,build,dev");
    let built = crates("normal,build");
    let again: Vec<_> = built.difference(&for_tests).collect();
    assert!(built.len() > 100 && again.is_empty(), "add features to tests/Cargo.toml: {again:#?}");
}
