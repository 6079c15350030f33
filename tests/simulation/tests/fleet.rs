//! The promises hold under faults, and the simulation finds every planted bug.

use clap::ValueEnum;
use simulation::{Bug, Faults, Options, Summary, simulate};

/// A small fleet: every poll reads the other workers.
fn options(seed: u64) -> Options {
    Options {
        seed,
        workers: 6,
        readers: 8,
        seconds: 3600,
        tasks_per_second: 4.0,
        faults: Faults::All,
        bug: None,
        trace: false,
    }
}

fn run(options: Options) -> Summary {
    simulate(options, |_| {})
}

#[test]
fn no_fault_breaks_a_promise() {
    #[expect(clippy::disallowed_methods, reason = "set by `make test LONG=1`")]
    let long = std::env::var_os("PGMILL_LONG_TESTS").is_some();
    let (last_small, last_large) = if long { (20, 3) } else { (8, 1) };
    let small = (1..=last_small).map(options);
    let large = (1..=last_large).map(|seed| Options { workers: 40, readers: 2, ..options(seed) });
    for options in small.chain(large) {
        let summary = run(options);
        assert_eq!(summary.violation, None, "{options:?}");
        assert!(summary.faults > 10 && summary.tasks > 1000, "{summary:?}");
    }
}

#[test]
fn every_planted_bug_is_found() {
    for bug in Bug::value_variants() {
        // A larger fleet shows that all workers poll at once.
        let (workers, readers) = if *bug == Bug::Lockstep { (30, 2) } else { (6, 8) };
        // A rare coincidence needs some seeds.
        let first = match bug {
            Bug::RestartUnreported => 133,
            Bug::FutureHeartbeatClamped => 56,
            Bug::GapUnnoticed | Bug::ClaimsUnreconciled => 3,
            Bug::OutageUnreported
            | Bug::PendingUnreported
            | Bug::BatchKept
            | Bug::ReturnUnchecked => 2,
            _ => 1,
        };
        let planted = |seed| run(Options { bug: Some(*bug), workers, readers, ..options(seed) });
        let mut seeds = first..first + 60;
        let found = seeds.find_map(|seed| planted(seed).violation.map(|what| (seed, what)));
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} is not found");
    }
}

#[test]
fn a_seed_repeats_a_run() {
    let [first, second] = [(); 2].map(|()| run(options(7)));
    assert_eq!((first.trace_hash, first.events), (second.trace_hash, second.events));
    assert_ne!(run(options(8)).trace_hash, first.trace_hash);
}

#[test]
fn tasks_of_a_killed_worker_are_pending_soon_in_a_fleet_of_any_size() {
    for workers in [20, 100, 400] {
        let kills = Options {
            workers,
            readers: 2,
            seconds: 200,
            tasks_per_second: 1.0,
            faults: Faults::Kills,
            ..options(1)
        };
        let summary = run(kills);
        assert_eq!(summary.violation, None, "{workers} workers");
        let longest = summary.recoveries_ms.last().copied();
        println!("{workers} workers: {:?}", summary.recoveries_ms);
        assert!(longest.is_some_and(|longest| longest <= 5000), "{longest:?}");
    }
}

#[test]
fn a_notification_makes_a_bounded_number_of_workers_claim() {
    let claims_per_task = |workers| {
        let quiet = Options {
            workers,
            readers: 2,
            seconds: 40,
            tasks_per_second: 10.0,
            faults: Faults::None,
            ..options(1)
        };
        let summary = run(quiet);
        // Polls find the tasks that no notified worker can run.
        assert_eq!(summary.violation, None, "{workers} workers");
        summary.statements["claim"] / summary.tasks as u64
    };
    let [some, many] = [200, 800].map(claims_per_task);
    println!("{some} claims per task in a fleet of 200 workers, {many} in one of 800");
    assert!(many < some + some / 4);
}
