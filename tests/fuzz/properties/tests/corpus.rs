//! Runs the corpus, and texts of increasing length, through the functions that the fuzzer uses.

use std::path::Path;
use std::time::Duration;

use properties::{ALL, Property};
use rustix::time::{ClockId, clock_gettime};

#[test]
fn every_corpus_input_satisfies_its_property() {
    for (name, property) in ALL {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(name);
        let mut inputs = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            property(&std::fs::read(&path).unwrap());
            inputs += 1;
        }
        assert!(inputs > 2, "{name} has {inputs} inputs");
    }
}

#[test]
fn the_fuzzer_sees_the_branches_of_every_crate_with_a_parser() {
    let workspace = include_str!("../../../../Cargo.toml");
    let (_, dependencies) = include_str!("../Cargo.toml").split_once("[dependencies]\n").unwrap();
    let wrapper = include_str!("../../rustc");
    let names = dependencies.lines().map_while(|line| line.strip_suffix(".workspace = true"));
    let own: Vec<_> = names.filter(|it| workspace.contains(&format!("\n{it} = {{ path"))).collect();
    assert!(own.len() > 5, "{own:?}");
    for name in own {
        let argument = format!("\" --crate-name {} \"*", name.replace('-', "_"));
        assert!(wrapper.contains(&argument), "tests/fuzz/rustc does not instrument {name}");
    }
}

/// Tokens that open, separate, escape or repeat in one of the languages.
const UNITS: &[&str] = &[
    "@",
    "@daily(03:15) ",
    "@daily(",
    "@retry(max_attempts: 3) ",
    "(",
    ")",
    "[",
    "{",
    "'",
    "\"",
    "\\",
    "$",
    "$a$",
    "$$",
    "/*",
    "*/",
    "--",
    "\n",
    ";",
    "; ",
    "SELECT 1;",
    "COPY a ",
    "BEGIN ATOMIC ",
    "a",
    "a ",
    "a=b ",
    "a='",
    ",",
    "host=a,",
    "%41",
    "%",
    ":",
    "é",
    "1",
    "1h",
    "-",
    ".",
    "0 ",
    "[job.a]\n",
    "[[dependency]]\n",
    "a = 1\n",
    "a.",
    "E'",
    "U&'",
    "x'",
    "state:failed ",
    "id:1,",
    "since:1h ",
    "name:\"",
];

/// Processor time of this thread: independent of other load on the machine.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Quadratic behaviour would take minutes.
#[test]
fn parsing_time_is_not_quadratic_in_the_length() {
    const BYTES: usize = 1 << 17;
    const BOUND: Duration = Duration::from_secs(20);
    let in_time = |(name, property): &Property| {
        for unit in UNITS {
            for front in ["", "[", "postgres://"] {
                let text = format!("{front}{}", unit.repeat(BYTES / unit.len()));
                let begun = cpu_time();
                property(text.as_bytes());
                let took = cpu_time() - begun;
                assert!(took < BOUND, "{name}: {took:?} for {front}{unit}…");
            }
        }
    };
    std::thread::scope(|scope| {
        ALL.iter().for_each(|property| drop(scope.spawn(move || in_time(property))));
    });
}
