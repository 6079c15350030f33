//! Calendar: past and coming fires of all schedules, by day of a week or by hour of a day.

use jiff::civil::Date;
use jiff::{SignedDuration, ToSpan, Zoned};
use schedule::page::calendar::{self, CalendarFire};
use schedule::page::{self, PageFrom};

use crate::screens::prelude::*;

/// Schedules per page.
const PAGE_SIZE: i64 = 200;

/// Maximum number of past fires, and of coming fires, over all schedules of the page.
const MAX_FIRES: usize = 20_000;

/// Maximum number of past fires, and of coming fires, of one schedule.
const MAX_FIRES_OF_ONE: usize = 1500;

/// Time until which coming fires are calculated.
const AHEAD: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Maximum number of fires of one schedule that a day or an hour lists.
const LISTED: usize = 3;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/schedules/calendar", get(show))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CalendarParams {
    /// `week` (default) or `day`.
    view: String,
    /// A day of the period; empty: today.
    date: String,
    /// `UTC`; empty: the time zone of the browser.
    zone: String,
    /// Cursor: schedules after this name.
    after: String,
}

/// A day or an hour.
struct Slot {
    from: Timestamp,
    label: String,
    /// Day of the slot, which its link shows.
    date: Date,
    current: bool,
}

/// The fires of a schedule in a slot.
#[derive(Default)]
struct Cell {
    listed: Vec<Listed>,
    /// Number of further fires.
    more: usize,
    /// Number of failed runs among the further fires.
    more_failed: usize,
}

struct Listed {
    time: String,
    fire: CalendarFire,
}

struct CalendarRow {
    name: String,
    cells: Vec<Cell>,
    /// Whether the schedule has more fires than the page has read.
    cut: bool,
}

#[derive(Template)]
#[template(path = "calendar.html")]
struct CalendarPage {
    page: Layout,
    params: CalendarParams,
    slots: Vec<Slot>,
    rows: Vec<CalendarRow>,
    /// Number of schedules without a fire in the period.
    without: usize,
    next: Option<String>,
    zone: TimeZone,
    first: Date,
}

impl CalendarPage {
    fn by_day(&self) -> bool {
        self.params.view == "day"
    }

    fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// Returns the URL of another view, day or zone.
    fn path(&self, view: &str, date: &Date, zone: &str) -> String {
        format!("{}/schedules/calendar?view={view}&date={date}&zone={zone}", self.page.base)
    }

    fn earlier_path(&self) -> String {
        self.moved_path(-1)
    }

    fn later_path(&self) -> String {
        self.moved_path(1)
    }

    fn moved_path(&self, by: i64) -> String {
        let days = if self.by_day() { by } else { 7 * by };
        let date = self.first.checked_add(days.days()).unwrap_or(self.first);
        self.path(&self.params.view, &date, &self.params.zone)
    }

    fn more_path(&self, after: &str) -> String {
        format!(
            "{}&after={}",
            self.path(&self.params.view, &self.first, &self.params.zone),
            format::url_encode(after)
        )
    }
}

impl Listed {
    fn class(&self) -> &'static str {
        self.fire.state.map_or("coming", |state| format::state_class(state.as_str()))
    }

    fn title(&self) -> String {
        match (self.fire.run_id, self.fire.state) {
            (Some(run), Some(state)) => format!("{}: run {run} {state}", self.time),
            _ => format!("{}: coming", self.time),
        }
    }
}

async fn show(mut request: ReadRequest, Query(params): Query<CalendarParams>) -> HandlerResult {
    let zone = if params.zone == "UTC" { TimeZone::UTC } else { request.context.zone.clone() };
    let read = request.begin().await?;
    let now = read.viewer.now;
    let first = first_day(&params, &now.to_zoned(zone.clone()))?;
    let (slots, to) = slots(first, params.view == "day", &zone, now)?;
    let from = slots.first().map_or(now, |slot| slot.from);
    let listing = page::page(&*read.tx, PageFrom::After(&params.after, PAGE_SIZE), 0).await?;
    let names: Vec<String> = listing.schedules.iter().map(|it| it.status.name.clone()).collect();
    let limit = (MAX_FIRES / names.len().max(1)).clamp(1, MAX_FIRES_OF_ONE);
    let mut fires: HashMap<String, Vec<CalendarFire>> = HashMap::new();
    for fire in calendar::fired(&*read.tx, &names, (from, to), limit.value()).await? {
        fires.entry(fire.schedule.clone()).or_default().push(fire);
    }
    // A fire at the beginning of the period belongs to it.
    let before = from.checked_sub(SignedDuration::from_micros(1)).unwrap_or(from);
    let horizon = to.min(now.checked_add(AHEAD).unwrap_or(to));
    let (mut rows, mut without) = (Vec::new(), 0);
    for it in &listing.schedules {
        let mut all = fires.remove(&it.status.name).unwrap_or_default();
        let mut cut = all.len() >= limit;
        let coming = calendar::coming(&it.status, (now.max(before), horizon), limit);
        cut |= coming.len() >= limit;
        all.extend(coming);
        if all.is_empty() {
            without += 1;
            continue;
        }
        rows.push(CalendarRow {
            name: it.status.name.clone(),
            cells: cells(all, &slots, &zone),
            cut,
        });
    }
    let page = read.layout("Calendar");
    render(&CalendarPage { page, params, slots, rows, without, next: listing.next, zone, first })
}

/// Returns the first day of the period: the day itself, or the Monday of its week.
fn first_day(params: &CalendarParams, now: &Zoned) -> Result<Date, HttpError> {
    let wrong = || {
        HttpError::bad_request(format!("invalid date \"{}\"", params.date))
            .hint("such as 2026-12-01")
    };
    let date: Date = match params.date.trim() {
        "" => now.date(),
        text => text.parse().map_err(|_| wrong())?,
    };
    if params.view == "day" {
        return Ok(date);
    }
    let weekday = i64::from(date.weekday().to_monday_zero_offset());
    date.checked_sub(weekday.days()).map_err(|_| wrong())
}

/// Returns the slots of the period and its end. A day of a clock change has 23 or 25 hours.
fn slots(
    first: Date,
    by_hour: bool,
    zone: &TimeZone,
    now: Timestamp,
) -> Result<(Vec<Slot>, Timestamp), HttpError> {
    let outside = |_: jiff::Error| HttpError::bad_request("the date is outside of the calendar");
    let midnight = |date: Date| -> Result<Timestamp, HttpError> {
        Ok(date.to_zoned(zone.clone()).map_err(outside)?.timestamp())
    };
    let day = |days: i64| first.checked_add(days.days()).map_err(outside);
    let mut starts: Vec<Timestamp> = Vec::new();
    let to = if by_hour {
        let to = midnight(day(1)?)?;
        let mut at = midnight(first)?;
        while at < to {
            starts.push(at);
            at += SignedDuration::from_hours(1);
        }
        to
    } else {
        for days in 0..7 {
            starts.push(midnight(day(days)?)?);
        }
        midnight(day(7)?)?
    };
    let ends = starts.iter().skip(1).copied().chain([to]);
    let slot = |(from, to): (&Timestamp, Timestamp)| {
        let local = from.to_zoned(zone.clone());
        Slot {
            from: *from,
            label: local.strftime(if by_hour { "%H:00" } else { "%a %m-%d" }).to_string(),
            date: local.date(),
            current: (*from..to).contains(&now),
        }
    };
    Ok((starts.iter().zip(ends).map(slot).collect(), to))
}

/// Distributes the fires of a schedule over the slots. A cell lists failed runs before others, and
/// all in the order of time.
fn cells(mut fires: Vec<CalendarFire>, slots: &[Slot], zone: &TimeZone) -> Vec<Cell> {
    let failed = |fire: &CalendarFire| fire.state.is_some_and(|state| state.as_str() == "failed");
    fires.sort_by_key(|fire| (!failed(fire), fire.fire_at));
    let mut cells: Vec<Cell> = slots.iter().map(|_| Cell::default()).collect();
    for fire in fires {
        let place = slots.partition_point(|slot| slot.from <= fire.fire_at);
        let Some(cell) = place.checked_sub(1).and_then(|place| cells.get_mut(place)) else {
            continue;
        };
        if cell.listed.len() < LISTED {
            let local = fire.fire_at.to_zoned(zone.clone());
            cell.listed.push(Listed { time: local.strftime("%H:%M").to_string(), fire });
        } else {
            cell.more += 1;
            cell.more_failed += usize::from(failed(&fire));
        }
    }
    for cell in &mut cells {
        cell.listed.sort_by_key(|it| it.fire.fire_at);
    }
    cells
}

#[cfg(test)]
mod tests {
    use queue::run::RunState;

    use super::*;

    fn fire(at: &str, state: Option<RunState>) -> CalendarFire {
        let run_id = state.map(|_| 1);
        CalendarFire { schedule: "s".to_owned(), fire_at: at.parse().unwrap(), run_id, state }
    }

    #[test]
    fn a_cell_lists_failed_runs_first_and_counts_the_rest() {
        let now = "2026-03-29T12:00:00Z".parse().unwrap();
        let (slots, _) = slots("2026-03-23".parse().unwrap(), false, &TimeZone::UTC, now).unwrap();
        assert_eq!((slots.len(), slots[6].current, slots[0].current), (7, true, false));
        let times = ["01", "02", "03", "04", "05"];
        let ok = times.map(|h| fire(&format!("2026-03-24T{h}:00:00Z"), Some(RunState::Succeeded)));
        let failed = fire("2026-03-24T06:00:00Z", Some(RunState::Failed));
        let all = ok.into_iter().chain([failed, fire("2026-03-29T13:00:00Z", None)]).collect();
        let cells = cells(all, &slots, &TimeZone::UTC);
        let listed: Vec<&str> = cells[1].listed.iter().map(|it| it.time.as_str()).collect();
        assert_eq!(
            (listed, cells[1].more, cells[1].more_failed),
            (vec!["01:00", "02:00", "06:00"], 3, 0)
        );
        assert_eq!(cells[6].listed[0].class(), "coming");
    }

    #[test]
    fn a_day_of_a_clock_change_has_23_or_25_hours() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let hours = |date: &str| {
            slots(date.parse().unwrap(), true, &zone, Timestamp::UNIX_EPOCH).unwrap().0.len()
        };
        assert_eq!(["2026-03-29", "2026-10-25", "2026-10-26"].map(hours), [23, 25, 24]);
    }
}
