//! Old history, of which the retention drops a part during the run, and the daily partitions.

use anyhow::Result;

use crate::context::database::Database;
use crate::result::Check;

/// Creates partitions of the last ten days with some attempts each, and limits the history to three
/// days.
const LAY: &str = "SET /* loadtest.old_history */ timezone = 'UTC';
DO $$
DECLARE
    day date;
BEGIN
    FOR day IN SELECT (current_date - n) FROM generate_series(1, 10) AS n LOOP
        EXECUTE format('CREATE TABLE mill.%I (LIKE mill.attempts INCLUDING DEFAULTS)',
            'attempts_' || to_char(day, 'YYYYMMDD'));
        EXECUTE format('ALTER TABLE mill.attempts ATTACH PARTITION mill.%I FOR VALUES FROM (%L) TO (%L)',
            'attempts_' || to_char(day, 'YYYYMMDD'), day::timestamptz, (day + 1)::timestamptz);
    END LOOP;
END
$$;
INSERT INTO mill.attempts (finished_at, task_id, enqueued_at, due_at, started_at, attempt, outcome,
    priority, final, queue, statement)
SELECT t.at, 0, t.at, t.at, t.at, 1, 'succeeded', 'normal', true, 'old', 'SELECT 1'
FROM generate_series(1, 10) AS n, generate_series(1, 1000) AS i,
    LATERAL (SELECT (current_date - n)::timestamptz + i * interval '1 minute' AS at) AS t;
UPDATE mill.settings SET history_retention = '3 days'";

/// Partitions that the retention must have dropped, partitions of today and of the next six days, and
/// the days whose partition has attempts of this run.
const PARTITIONS: &str = "SELECT /* loadtest.partitions */ count(*) FILTER (WHERE p.day < (now() AT TIME ZONE 'UTC')::date - 4),
    count(*) FILTER (WHERE p.day BETWEEN (now() AT TIME ZONE 'UTC')::date AND (now() AT TIME ZONE 'UTC')::date + 6),
    (SELECT count(DISTINCT (a.finished_at AT TIME ZONE 'UTC')::date) FROM mill.attempts a WHERE a.task_id > 0)
FROM (SELECT right(c.relname, 8)::date FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'mill.attempts'::regclass AND c.relname ~ '^attempts_[0-9]{8}$') AS p (day)";

/// Creates old history.
pub(super) async fn lay(database: &Database) -> Result<()> {
    Ok(database.session.batch_execute(LAY).await?)
}

/// Checks that old partitions are gone and later ones exist. Returns the number of days, by UTC, on
/// which tasks of this run have ended.
pub(super) async fn check(database: &Database) -> Result<(Check, i64)> {
    let row = database.session.query_typed(PARTITIONS, &[]).await?;
    let [old, coming, days]: [i64; 3] = [0, 1, 2].map(|n| row[0].get(n));
    let check = Check {
        what: "the retention drops old partitions, and there are partitions for a week".to_owned(),
        passed: (old, coming) == (0, 7),
        detail: format!("{old} partitions too old, {coming} of the 7 next days exist"),
    };
    Ok((check, days))
}
