"""Computes the fire times of a cadence by brute force.

A deliberately simple second implementation, to be compared with the engine in Rust. A cadence is
two predicates, one on the local date, one on the local time of day, and one of two rules that map
them to instants:

fixed       walk the local minutes (or seconds) of each day; a time in a gap is the first instant
            after the gap, a time that exists twice is the first of the two, equal instants are one;
wall clock  walk the UTC minutes (or seconds) and check the time that the wall clock shows.
"""

from datetime import date, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

UTC = timezone.utc
DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
# The last instant that the engine supports.
LAST = datetime(9999, 12, 30, 22, tzinfo=UTC)


def shown(instant, zone):
    """Returns the time that the wall clock shows."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def instant_of(civil, zone):
    """Applies the fixed rule to a local date and time."""
    both = {civil.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
    real = [instant for instant in both if shown(instant, zone) == civil]
    if real:
        return min(real)
    # The clock never shows this time: walk the minutes until it shows a later one.
    instant = civil.replace(tzinfo=UTC, second=0) - 15 * timedelta(hours=1)
    while shown(instant, zone) <= civil:
        instant += MINUTE
    return instant


def fixed_fires(day_holds, time_holds, zone, after, count, step):
    found = []
    first = after.toordinal() - 2
    for ordinal in range(first, min(first + 200 * 366, date.max.toordinal()) + 1):
        day = date.fromordinal(ordinal)
        if len(found) >= count and day > found[count - 1].date() + 3 * DAY:
            break
        if day_holds(day):
            for second in range(0, 86400, step):
                clock = time(second // 3600, second // 60 % 60, second % 60)
                if time_holds(clock):
                    instant = instant_of(datetime.combine(day, clock), zone)
                    if after < instant <= LAST and instant not in found:
                        found.append(instant)
            found.sort()
    return found[:count]


def wall_clock_fires(day_holds, time_holds, zone, after, count, step):
    found = []
    instant = after.replace(second=0, microsecond=0)
    end = after + 1600 * DAY
    while len(found) < count:
        assert instant < end, "no fire for years: unsuitable for this walk"
        civil = shown(instant, zone)
        if instant > after and time_holds(civil.time()) and day_holds(civil.date()):
            found.append(instant)
        instant += timedelta(seconds=step)
    return found


# Predicates on dates.

MON, TUE, WED, THU, FRI, SAT, SUN = range(7)
WEEKDAYS = (MON, TUE, WED, THU, FRI)
WEEKEND = (SAT, SUN)


def any_day(day):
    return True


def on(*weekdays):
    return lambda day: day.weekday() in weekdays


def dates(*numbers):
    return lambda day: day.day in numbers


def last_day(day):
    return (day + DAY).month != day.month


def last_seven(day):
    return (day + 7 * DAY).month != day.month


def week(*numbers):
    """Days 1 to 7 are week 1 of the month, 29 to 31 week 5."""
    return lambda day: (day.day + 6) // 7 in numbers


def months(*numbers):
    return lambda day: day.month in numbers


def period(first="0001-01-01", last="9999-12-31"):
    first, last = date.fromisoformat(first), date.fromisoformat(last)
    return lambda day: first <= day <= last


# The date in `since` is also the first on which the cadence fires.


def every_days(n, since=None):
    start = date.fromisoformat(since or "1970-01-05")
    return all_of(period(since or "0001-01-01"), lambda day: (day - start).days % n == 0)


def monday_of(day):
    return day - day.weekday() * DAY


def every_weeks(n, since=None):
    start = monday_of(date.fromisoformat(since or "1970-01-05"))
    number = lambda day: (monday_of(day) - start).days // 7
    return all_of(period(since or "0001-01-01"), lambda day: number(day) % n == 0)


def every_months(n, since=None):
    start = date.fromisoformat(since or "1970-01-05")
    number = lambda day: day.year * 12 + day.month - start.year * 12 - start.month
    return all_of(period(since or "0001-01-01"), lambda day: number(day) % n == 0)


def all_of(*predicates):
    return lambda day: all(holds(day) for holds in predicates)


def any_of(*predicates):
    return lambda day: any(holds(day) for holds in predicates)


# Predicates on times of day.


def at(text):
    times = [time.fromisoformat(word) for word in text.split()]
    return lambda clock: clock in times


def marks(seconds):
    """The multiples of this number of seconds after midnight."""
    return lambda clock: (clock.hour * 3600 + clock.minute * 60 + clock.second) % seconds == 0


# A matcher for cron expressions: Vixie cron with L, # and W.

MONTH_NAMES = "- JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
DAY_NAMES = "SUN MON TUE WED THU FRI SAT".split()


def number(word, names):
    return names.index(word.upper()) if word.upper() in names else int(word)


def part_holds(part, value, low, high, names):
    bounds, _, step = part.partition("/")
    if bounds == "*":
        first, final = low, high
    elif "-" in bounds:
        first, final = (number(word, names) for word in bounds.split("-"))
    else:
        first = final = number(bounds, names)
    return value in range(first, final + 1, int(step or 1))


def field_holds(field, value, low, high, names=()):
    return any(part_holds(part, value, low, high, names) for part in field.split(","))


def nearest_weekday(day, wanted):
    """Returns the weekday nearest to that date, in the same month."""
    for away in (0, -1, 1, -2, 2):
        other = month_day(day, wanted + away)
        if other and other.weekday() in WEEKDAYS:
            return other.day
    return None


def month_day(day, number):
    try:
        return day.replace(day=number)
    except ValueError:
        return None


def day_of_month_holds(field, day):
    for part in field.split(","):
        if part == "L":
            if last_day(day):
                return True
        elif part.endswith("W"):
            if nearest_weekday(day, int(part[:-1])) == day.day:
                return True
        elif part_holds(part, day.day, 1, 31, ()):
            return True
    return False


def day_of_week_holds(field, day):
    from_sunday = day.isoweekday() % 7
    for part in field.split(","):
        if "#" in part:
            wanted, nth = part.split("#")
            if number(wanted, DAY_NAMES) % 7 == from_sunday and week(int(nth))(day):
                return True
        elif part.endswith("L"):
            if number(part[:-1], DAY_NAMES) % 7 == from_sunday and last_seven(day):
                return True
        # Sunday is 0 and 7.
        elif part_holds(part, from_sunday, 0, 7, DAY_NAMES):
            return True
        elif from_sunday == 0 and part_holds(part, 7, 0, 7, DAY_NAMES):
            return True
    return False


def cron_day(text):
    *_, of_month, month, of_week = text.split()

    def holds(day):
        if not field_holds(month, day.month, 1, 12, MONTH_NAMES):
            return False
        if of_month != "*" and of_week != "*":
            return day_of_month_holds(of_month, day) or day_of_week_holds(of_week, day)
        return day_of_month_holds(of_month, day) and day_of_week_holds(of_week, day)

    return holds


def cron_time(text):
    fields = text.split()
    second, minute, hour = fields[:3] if len(fields) == 6 else ["0", *fields[:2]]
    return lambda clock: (
        field_holds(hour, clock.hour, 0, 23)
        and field_holds(minute, clock.minute, 0, 59)
        and field_holds(second, clock.second, 0, 59)
    )


# The table.


def instant(text):
    return datetime.fromisoformat(text).astimezone(UTC)


def words(instant):
    text = instant.strftime("%Y-%m-%dT%H:%M:%S")
    return text + (f".{instant.microsecond:06}".rstrip("0") if instant.microsecond else "") + "Z"


def rows(
    walk, text, afters, day=any_day, time=None, only=None, zone="UTC", count=4, step=60, by_hand=""
):
    """The lines of one cadence, one for each instant in `afters`.

    `only` is one more predicate on the time of day. `by_hand` is what was reasoned out without this
    file: the first fires of the first line must be these.
    """
    clock_holds = (lambda clock: time(clock) and only(clock)) if only else time
    for after in afters.split():
        fires = walk(day, clock_holds, ZoneInfo(zone), instant(after), count, step)
        expected = [instant(word) for word in by_hand.split()]
        assert fires[: len(expected)] == expected, (text, after, fires, by_hand)
        by_hand = ""
        none_left = ["-"] if len(fires) < count else []
        yield " | ".join([text, words(instant(after)), " ".join([*map(words, fires), *none_left])])


KINDS = {}


def kind(name):
    global LINES
    LINES = KINDS.setdefault(name, [])


def fixed(text, afters, **meaning):
    LINES.extend(rows(fixed_fires, text, afters, **meaning))


def wall(text, afters, **meaning):
    LINES.extend(rows(wall_clock_fires, text, afters, **meaning))


def cron(walk, fields, afters, zone="UTC", more="", day=any_day, **meaning):
    text = f'cron("{fields}"{more}' + (f", zone: {zone})" if zone != "UTC" else ")")
    day = all_of(cron_day(fields), day)
    walk(text, afters, day=day, time=cron_time(fields), zone=zone, **meaning)


NEW_YEAR = "2026-01-01T00:00Z"
BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
KOLKATA, KATHMANDU, APIA = "Asia/Kolkata", "Asia/Kathmandu", "Pacific/Apia"
CASABLANCA, VOLGOGRAD, PYONGYANG = "Africa/Casablanca", "Europe/Volgograd", "Asia/Pyongyang"
SAO_PAULO, CAIRO, CHATHAM = "America/Sao_Paulo", "Africa/Cairo", "Pacific/Chatham"
