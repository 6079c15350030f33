//! Mutants of the receipts: the checker must find a fault that is planted in one of the target's
//! functions. The unchanged functions must pass the same scenario.

use checker::{Answer, Expect, Op, OpKind, merge, record};
use rustix::process::Signal;

use crate::guarantees::checker_detection::broken;
use crate::guarantees::checker_mutants::plant;
use crate::harness::{Worker, amount, eventually};
use crate::targets::resolve::{HeldCommit, OPEN};
use crate::targets::target::as_flags;

/// A function of the target, a text in it, what replaces the text, whether the task is cancelled before its
/// COMMIT arrives, and the promises that the checker finds broken.
type Mutant = (&'static str, &'static str, &'static str, bool, &'static [&'static str]);

const MUTANTS: [Mutant; 2] = [
    // A success does not refuse another one.
    (
        "mill_target.complete",
        "NOT r.done AND r.epoch < excluded.epoch AND ",
        "",
        false,
        &["no_effect_twice", "effect_iff_succeeded"],
    ),
    // The attempt of a cancelled task can still commit.
    (
        "mill_target.resolve",
        "SELECT s.task, s.epoch, false",
        "SELECT s.task, 0, false",
        true,
        &["effect_iff_succeeded"],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_in_the_receipts_is_found() {
    for (function, from, to, cancelled, finds) in MUTANTS {
        // In the short form, the unchanged functions pass only one of the two scenarios.
        let unchanged = !cancelled || amount(false, true);
        for planted in [false, true].into_iter().filter(|planted| *planted || unchanged) {
            let held = HeldCommit::of("SELECT chaos.work()", checker::INSTALL_IN_TARGET).await;
            let HeldCommit { first, flags, proxy, server, queue, id, .. } = &held;
            let (dwh, id) = (&server.database, *id);
            queue.execute(checker::INSTALL).await;
            if planted {
                plant(dwh, function, (from, to)).await;
            }
            let enqueued = Op::new(OpKind::Enqueue, Answer::Ok);
            let mut ops = vec![Op { task: Some(id), name: Some("task".to_owned()), ..enqueued }];
            first.signal(Signal::STOP);
            if cancelled {
                let reply: String = queue.value(&format!("SELECT mill.cancel({id})")).await;
                ops.push(Op {
                    task: Some(id),
                    reply: Some(reply),
                    ..Op::new(OpKind::Cancel, Answer::Ok)
                });
            }
            let _second = Worker::start(queue, &as_flags(flags));
            let outcome = queue.outcome(id).await;
            assert_eq!(outcome, if cancelled { "cancelled" } else { "succeeded" });
            proxy.release(true);
            eventually("the COMMIT has arrived", async || dwh.value::<i64>(OPEN).await == 0).await;
            first.signal(Signal::CONT);
            // The lock of a worker that is not registered would be a leftover.
            queue.until_alive(2).await;
            record(queue.client(), &ops).await.unwrap();
            merge(dwh.client(), queue.client()).await.unwrap();
            let found = broken(queue, &Expect { drained: false, ..Expect::default() }).await;
            let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
            let expected: &[&str] = if planted { finds } else { &[] };
            assert_eq!(names, expected, "{function}: {from} -> {to}: {found:#?}");
        }
    }
}
