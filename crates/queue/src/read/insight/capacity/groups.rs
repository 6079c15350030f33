//! Groups and their task counts, with bounded counting.

use conninfo::GenericClient;

use crate::error::QueueError;
use crate::operator::group::Group;
use crate::row::rows;

/// Counts pending tasks through the index `tasks_group`. Counts blocked tasks through
/// `tasks_blocked`, by the limit that they wait for. The view `mill.group_status` is not used,
/// because it reads every live task.
const GROUPS: &str = "SELECT /* queue.insight_groups */ g.name, g.description, g.priority::text, g.max_running, g.opens, g.closes, g.zone, a.open,
    a.until AS next_change_at,
    (SELECT count(*) FROM (SELECT FROM mill.tasks t WHERE t.state = 'pending'
        AND t.group_name = g.name LIMIT 10000) AS few) AS pending,
    (SELECT count(*) FROM mill.tasks t WHERE t.state = 'running' AND t.group_name = g.name) AS running,
    (SELECT count(*) FROM (SELECT FROM mill.limits l JOIN mill.tasks t ON t.blocking_limit_id = l.id
        WHERE l.kind = 'group' AND l.name = g.name AND t.state = 'blocked' LIMIT 10000) AS few) AS blocked,
    g.name IS NOT DISTINCT FROM (SELECT s.default_group FROM mill.settings s) AS default
FROM (SELECT * FROM mill.groups ORDER BY name LIMIT 500) g
    CROSS JOIN LATERAL mill.active_period(g.opens, g.closes, g.zone, now()) AS a
ORDER BY g.name";

/// Returns the first 500 groups by name. Counts of waiting tasks stop at
/// [`COUNT_LIMIT`](crate::insight::lanes::COUNT_LIMIT).
pub async fn groups(client: &impl GenericClient) -> Result<Vec<Group>, QueueError> {
    rows(client, GROUPS, &[]).await
}
