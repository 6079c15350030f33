//! `pgmill schedule calendar`: past and coming fires of all schedules.

use cli::Exit;
use conninfo::Client;
use jiff::SignedDuration;
use jiff::tz::TimeZone;
use schedule::page::calendar;
use schedule::page::{self, PageFrom};

use crate::args::{ScheduleCalendar, instant};
use crate::output::format::relative_time;
use crate::output::{Output, Row, Tone};

/// Schedules read at a time.
const PAGE_SIZE: i64 = 200;

/// Lists the fires of all schedules in a period, in the order of time.
///
/// # Errors
/// Fails if a bound of the period is outside of the calendar.
pub(crate) async fn calendar(client: &Client, out: &Output, args: &ScheduleCalendar) -> Exit {
    let now = queue::task_queries::now(client).await?;
    let day = SignedDuration::from_hours(24);
    let from = instant("--from", args.from.as_ref(), now)?.unwrap_or(now - day);
    let to = instant("--to", args.to.as_ref(), now)?.unwrap_or(now + day);
    let limit = usize::from(args.limit);
    // A fire at the beginning of the period belongs to it.
    let before = from.checked_sub(SignedDuration::from_micros(1)).unwrap_or(from);
    let (mut fires, mut after) = (Vec::new(), Some(String::new()));
    while let Some(name) = after {
        let page = page::page(client, PageFrom::After(&name, PAGE_SIZE), 0).await?;
        let names: Vec<String> = page.schedules.iter().map(|it| it.status.name.clone()).collect();
        fires.extend(calendar::fired(client, &names, (from, to), args.limit.into()).await?);
        let coming =
            |it: &page::ScheduleSummary| calendar::coming(&it.status, (now.max(before), to), limit);
        fires.extend(page.schedules.iter().flat_map(coming));
        after = page.next;
    }
    fires.sort_by(|a, b| (a.fire_at, &a.schedule).cmp(&(b.fire_at, &b.schedule)));
    out.list(&fires, "no schedule fires in this period", |fire| {
        let state = fire.state.map_or("coming", |state| state.as_str());
        let local = fire.fire_at.to_zoned(TimeZone::system());
        Row::of("fire", local.strftime("%a %F %T %Z"))
            .text("schedule", &fire.schedule)
            .text("state", state)
            .tone(Tone::of_end(state))
            .maybe("run", fire.run_id)
            .text("relative", relative_time(fire.fire_at, now))
    })
}
