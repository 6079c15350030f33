//! Synthetic results for the tests of tables and pages. The numbers are not measurements.

use crate::result::{
    Better, Case, Check, FORMAT, Machine, Percentiles, Results, Scenario, Series, Server,
};

/// Returns a run with every kind of scenario that a page must show.
pub(crate) fn results() -> Results {
    Results {
        format: FORMAT,
        started_at: "2026-11-21T14:24:05Z".into(),
        command: "loadtest run drain pinned latency idle fleet backlog --rounds 3".into(),
        version: "0.1.0".into(),
        machine: Machine {
            cores: 2,
            processor: "Example CPU @ 2.50GHz".into(),
            memory_bytes: 16_748_457_984,
            kernel: "Linux 6.1.0".into(),
        },
        server: Server {
            version: "15.18".into(),
            settings: vec![
                ("fsync".into(), "on".into()),
                ("synchronous_commit".into(), "on".into()),
                ("shared_buffers".into(), "128MB".into()),
            ],
            commit_ms: 2.41,
        },
        scenarios: vec![drain(), pinned(), latency(), idle(), fleet(), backlog()],
    }
}

/// Returns a case with a rate for each of three rounds.
fn rate(name: &str, rounds: [f64; 3]) -> Case {
    let series = (1..).zip(rounds).map(|(round, rate)| wave("throughput", "tasks/s", round, rate));
    Case {
        name: name.into(),
        unit: "tasks/s".into(),
        rounds: rounds.to_vec(),
        series: series.collect(),
        ..Case::default()
    }
}

/// Returns the case with a reference and with a goal for the ratio.
fn of(case: Case, reference: &str, goal: Option<f64>) -> Case {
    Case { reference: Some(reference.into()), goal, ..case }
}

/// Returns a deterministic series around a level.
fn wave(name: &str, unit: &str, round: usize, level: f64) -> Series {
    let points = (0..40_u32).map(|second| {
        let time = f64::from(second);
        let phase = f64::from(u32::try_from(round).unwrap_or_default());
        let swing = (time / 3.0 + phase).sin() * 0.06 + (time * 1.7 + phase * 2.0).cos() * 0.03;
        // Only digits that survive the JSON round trip.
        (time, (level * (1.0 + swing) * 10.0).round() / 10.0)
    });
    Series { name: name.into(), unit: unit.into(), round, points: points.collect() }
}

/// Returns a series from zero with this slope.
fn slope(name: &str, unit: &str, round: usize, slope: f64) -> Series {
    let points = (0..40_u32).map(f64::from).map(|second| (second, slope * second));
    Series { name: name.into(), unit: unit.into(), round, points: points.collect() }
}

fn check(what: &str, passed: bool, detail: &str) -> Check {
    Check { what: what.into(), passed, detail: detail.into() }
}

fn drain() -> Scenario {
    let memory = |case: Case, bytes: f64| {
        let lines = (1..4).map(|round| wave("worker memory", "MB", round, bytes));
        Case { series: case.series.iter().cloned().chain(lines).collect(), ..case }
    };
    Scenario {
        name: "drain".into(),
        title: "A backlog of 100,000 tasks, each one INSERT & one commit".into(),
        cases: vec![
            rate("ceiling", [5_890.0, 6_120.0, 6_010.0]),
            memory(of(rate("pgmill", [5_310.0, 5_580.0, 5_402.0]), "ceiling", Some(0.85)), 18.4),
            rate("ceiling, shared", [31_800.0, 33_100.0, 32_600.0]),
            of(
                rate("pgmill, shared", [21_600.0, 23_400.0, 20_900.0]),
                "ceiling, shared",
                Some(0.7),
            ),
        ],
        checks: vec![
            check("every effect exactly once", true, "100,000 rows of 100,000 tasks"),
            check("nothing left", true, "0 live tasks"),
        ],
        notes: vec!["readers: 16 in 2 workers".into()],
    }
}

fn pinned() -> Scenario {
    let mut free = rate("free horizon", [21_300.0, 22_100.0, 21_800.0]);
    let mut pinned =
        of(rate("pinned horizon", [19_800.0, 20_300.0, 20_600.0]), "free horizon", Some(0.85));
    for round in 1..4 {
        free.series.push(wave("dead rows", "rows", round, 8_000.0));
        pinned.series.push(slope("dead rows", "rows", round, 25_000.0));
        free.series.push(wave("claim buffers", "buffers", round, 21.0));
        pinned.series.push(wave("claim buffers", "buffers", round, 24.0));
    }
    Scenario {
        name: "pinned".into(),
        title: "A million tasks with an old snapshot open".into(),
        cases: vec![free, pinned],
        checks: vec![check("claim ≤ 30 buffers", true, "at most 26")],
        notes: vec!["the snapshot is held by an idle REPEATABLE READ transaction".into()],
    }
}

fn latency() -> Scenario {
    let timed = |name: &str, factor: f64, goal| {
        let tail = |left: f64| factor * (0.5 + 0.12 * (100.0 / left).ln().powi(2));
        let curve = [100.0, 75.0, 50.0, 25.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.1, 0.05, 0.02];
        let p50 = tail(50.0);
        Case {
            name: name.into(),
            unit: "ms".into(),
            better: Better::Lower,
            rounds: vec![p50 * 0.97, p50, p50 * 1.05],
            goal,
            percentiles: Some(Percentiles {
                count: 10_000,
                p50,
                p90: tail(10.0),
                p99: tail(1.0),
                p999: tail(0.1),
                max: tail(0.01),
                curve: curve.map(|left| (100.0 - left, tail(left))).to_vec(),
            }),
            ..Case::default()
        }
    };
    Scenario {
        name: "latency".into(),
        title: "From the enqueue's commit to the statement's start".into(),
        cases: vec![
            timed("idle fleet", 1.0, Some(1.0)),
            timed("half load", 1.9, None),
            timed("<b>hostile</b> & \"odd\"", 1.2, Some(0.5)),
        ],
        checks: vec![check("every task was timed", false, "9,998 of 10,000")],
        notes: vec!["one task at a time".into()],
    }
}

fn idle() -> Scenario {
    let case = |name: &str, unit: &str, rounds: [f64; 3], goal: f64| Case {
        name: name.into(),
        unit: unit.into(),
        better: Better::Lower,
        rounds: rounds.to_vec(),
        goal: Some(goal),
        ..Case::default()
    };
    Scenario {
        name: "idle".into(),
        title: "A fleet with nothing to do, per worker".into(),
        cases: vec![
            case("statements", "/min", [41.0, 42.0, 41.0], 60.0),
            case("WAL", "kB/min", [0.0, 0.0, 0.0], 10.0),
            case("processor", "ms/s", [3.1, 2.8, 3.0], 5.0),
        ],
        checks: vec![],
        notes: vec![],
    }
}

fn fleet() -> Scenario {
    let against = |case| of(case, "4 workers", Some(0.8));
    Scenario {
        name: "fleet".into(),
        title: "The same backlog for fleets of different size".into(),
        cases: vec![
            of(rate("1 worker", [15_200.0, 15_400.0, 15_100.0]), "4 workers", None),
            of(rate("2 workers", [20_800.0, 21_200.0, 21_000.0]), "4 workers", None),
            rate("4 workers", [22_100.0, 21_900.0, 22_400.0]),
            of(rate("16 workers", [20_700.0, 20_200.0, 20_900.0]), "4 workers", None),
            against(rate("64 workers", [17_300.0, 17_900.0, 18_400.0])),
        ],
        checks: vec![check("every effect exactly once", true, "1,500,000 of 1,500,000")],
        notes: vec![],
    }
}

fn backlog() -> Scenario {
    Scenario {
        name: "peer".into(),
        title: "The same inserts as the best of the other queues".into(),
        cases: vec![
            rate("best peer", [11_800.0, 10_900.0, 11_200.0]),
            of(rate("pgmill", [31_600.0, 30_400.0, 31_000.0]), "best peer", Some(2.5)),
            rate("another peer with a long name", [10_700.0, 10_300.0, 10_400.0]),
        ],
        checks: vec![],
        notes: vec!["the peers run each task at least once, pgmill exactly once".into()],
    }
}
