//! Applies the settings of a group, for `pgmill group set` and `pgmill group import`.

use cli::Failure;
use jiff::civil::Time;
use queue::group::{self, ActivePeriod, GroupChange};
use queue::{LimitKind, QueueError, limit};
use schedule::similar_zone;
use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;

use crate::args::{GroupArgs, OrOff};

/// Applies the settings of one group.
///
/// # Errors
/// Fails for an unknown time zone.
pub(super) async fn apply(transaction: &Transaction<'_>, args: &GroupArgs) -> Result<(), Failure> {
    let change = GroupChange {
        description: args.description.clone(),
        priority: args.priority,
        max_running: args.max_running.and_then(|max_running| max_running.0),
    };
    group::set_group(transaction, &args.name, &change).await?;
    if args.max_running == Some(OrOff(None)) {
        limit::set_max_running(transaction, LimitKind::Group, &args.name, None).await?;
    }
    if let Some(active) = args.active {
        let period = period(active, &args.zone);
        let set = group::set_active_period(transaction, &args.name, period.as_ref()).await;
        set.map_err(|error| with_similar_zone(error, &args.zone))?;
    }
    Ok(())
}

/// Returns the active period that the arguments give.
pub(super) fn period(active: OrOff<(Time, Time)>, zone: &str) -> Option<ActivePeriod> {
    active.0.map(|(opens, closes)| ActivePeriod { opens, closes, zone: zone.to_owned() })
}

/// Adds a hint to the server's error for an unknown time zone, which has none. The message may be translated.
fn with_similar_zone(error: QueueError, zone: &str) -> Failure {
    let unknown_zone =
        error.sqlstate() == Some(&SqlState::INVALID_PARAMETER_VALUE) && error.hint().is_none();
    let similar = similar_zone(zone).filter(|_| unknown_zone);
    Failure::from(error).maybe_hint(similar.map(|similar| format!("did you mean {similar}?")))
}
