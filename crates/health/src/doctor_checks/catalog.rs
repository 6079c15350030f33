//! Checks of what operations leave behind or use up: collations, invalid indexes, the queue of NOTIFY, locks.

use queue::catalog::{Catalog, ChangedCollation, LockTable};
use terminal::counted;

use super::Finding;

/// Number of names that a message lists.
const LISTED: usize = 5;

/// Checks all of these.
#[must_use]
pub fn catalog(facts: &Catalog) -> Vec<Finding> {
    let mut findings = collations(&facts.changed_collations);
    findings.push(indexes(&facts.invalid_indexes));
    findings.push(notify_queue(facts.notify_usage));
    findings.push(locks(&facts.locks));
    findings
}

/// Checks that no collation has changed since indexes were built with it.
fn collations(changed: &[ChangedCollation]) -> Vec<Finding> {
    const CHECK: &str = "collations";
    if changed.is_empty() {
        return vec![Finding::ok(CHECK, "no version has changed")];
    }
    let finding = |it: &ChangedCollation| {
        let ChangedCollation { kind, name, recorded, actual } = it;
        let (what, which, refresh) = match kind.as_str() {
            "DATABASE" => {
                ("database", format!("REINDEX DATABASE {name}"), "REFRESH COLLATION VERSION")
            }
            _ => ("collation", "REINDEX of the indexes that use it".to_owned(), "REFRESH VERSION"),
        };
        Finding::warning(
            CHECK,
            format!(
                "the collation version of {what} {name} was {recorded} and is {actual}: indexes of texts may be \
                 out of order"
            ),
        )
        .hint(format!("{which}, then ALTER {kind} {name} {refresh}."))
    };
    changed.iter().map(finding).collect()
}

/// Checks that all indexes of the database are valid. `invalid` has the names of the others.
fn indexes(invalid: &[String]) -> Finding {
    const CHECK: &str = "indexes";
    if invalid.is_empty() {
        return Finding::ok(CHECK, "all are valid");
    }
    let count = match invalid.len() {
        1 => "1 invalid index".to_owned(),
        count => format!("{count} invalid indexes"),
    };
    let more = if invalid.len() > LISTED { ", …" } else { "" };
    let listed = &invalid[..invalid.len().min(LISTED)];
    Finding::warning(CHECK, format!("{count}: {}{more}", listed.join(", "))).hint(
        "A failed CREATE INDEX CONCURRENTLY or REINDEX CONCURRENTLY has left them. They cost time with each \
         write, and no query uses them: DROP INDEX CONCURRENTLY.",
    )
}

/// Checks the queue of NOTIFY, of which `usage` is in use, from 0 to 1.
fn notify_queue(usage: f64) -> Finding {
    const CHECK: &str = "notify queue";
    const FILLING: f64 = 0.1;
    let message = format!("{:.0} % full", usage * 100.0);
    let finding = match usage {
        ..0.5 if usage < FILLING => return Finding::ok(CHECK, message),
        ..0.5 => Finding::warning(CHECK, message),
        _ => Finding::problem(CHECK, format!("{message}: when it is full, NOTIFY fails")),
    };
    finding.hint(
        "A session that has executed LISTEN does not read its notifications, because its transaction is open \
         or its client is stopped: end it. The server's log names its process id.",
    )
}

/// Checks the size of the server's lock table.
fn locks(table: &LockTable) -> Finding {
    const CHECK: &str = "locks";
    let LockTable { slots, used, history } = *table;
    let message = format!(
        "{used} of {slots} slots are used; a query of the whole history needs {}",
        counted(history, "slot")
    );
    if used > slots / 2 || history > slots / 2 {
        Finding::warning(CHECK, message).hint(
            "Without a free slot, statements fail with \"out of shared memory\". Increase \
             max_locks_per_transaction, which needs a restart of the server.",
        )
    } else {
        Finding::ok(CHECK, message)
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus::{Ok, Problem, Warning};
    use super::*;

    #[test]
    fn what_is_left_behind_or_used_up_is_a_warning() {
        assert_eq!(indexes(&[]).status, Ok);
        let names: Vec<String> = (1..=7).map(|n| format!("public.i{n}")).collect();
        let expected =
            "7 invalid indexes: public.i1, public.i2, public.i3, public.i4, public.i5, …";
        assert_eq!(indexes(&names).message, expected);
        let changed = |kind: &str, name: &str| ChangedCollation {
            kind: kind.to_owned(),
            name: name.to_owned(),
            recorded: "1".to_owned(),
            actual: "2".to_owned(),
        };
        let findings =
            collations(&[changed("DATABASE", "\"a b\""), changed("COLLATION", "public.de")]);
        let hints: Vec<_> = findings.into_iter().filter_map(|finding| finding.hint).collect();
        assert_eq!(
            hints,
            [
                "REINDEX DATABASE \"a b\", then ALTER DATABASE \"a b\" REFRESH COLLATION VERSION.",
                "REINDEX of the indexes that use it, then ALTER COLLATION public.de REFRESH VERSION.",
            ]
        );
        let usages = [0.0, 0.09, 0.1, 0.49, 0.5, 1.0].map(|usage| notify_queue(usage).status);
        assert_eq!(usages, [Ok, Ok, Warning, Warning, Problem, Problem]);
        for (used, history, status) in [(10, 50, Ok), (51, 0, Warning), (0, 51, Warning)] {
            assert_eq!(locks(&LockTable { slots: 100, used, history }).status, status);
        }
    }
}
