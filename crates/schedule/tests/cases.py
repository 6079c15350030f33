"""The table of expected fire times.

    python3 crates/schedule/tests/cases.py > crates/schedule/tests/cases.txt

Each cadence is given twice, here and in `clock_changes.py`: as the text that the crate parses, and
as predicates with which `brute_force.py` walks the calendar. A line of the table is
`cadence | after | fires`: the next fires strictly after the instant; a final `-` means that there
are no more fires. Needs only the standard library; the time zones are those of the machine.

`by_hand` lists instants derived by hand from the rule, as explained in the comment above them.
"""

import sys

sys.dont_write_bytecode = True

from brute_force import *

kind("daily")
# Strictly after: excludes the fire at the instant itself.
fixed("daily(03:15)", "2026-01-01T03:15Z 2026-01-01T03:14:59Z", time=at("03:15"),
      by_hand="2026-01-02T03:15Z 2026-01-03T03:15Z")
fixed("daily(03:15)", "2026-01-01T03:14:59.5Z 2026-01-01T03:15:00.000001Z", time=at("03:15"))
fixed("daily(00:00)", "2025-12-30T23:59Z 2026-01-01T00:00Z", time=at("00:00"))
fixed("daily(23:59:59)", "2026-02-27T12:00Z", time=at("23:59:59"), step=1)
fixed("daily(09:00, 17:00)", "2026-01-01T09:00Z 2026-01-01T17:00Z", time=at("09:00 17:00"))
fixed("daily(17:00, 09:00, 12:30)", NEW_YEAR, time=at("09:00 12:30 17:00"), count=6)
fixed("DAILY( 09:00 )", NEW_YEAR, time=at("09:00"))
fixed("daily(06:00:30, 06:00)", NEW_YEAR, time=at("06:00 06:00:30"), step=1)
fixed("daily(07:00, zone: Asia/Kolkata)", NEW_YEAR, time=at("07:00"), zone=KOLKATA,
      by_hand="2026-01-01T01:30Z")
fixed("daily(zone: Asia/Kathmandu, 07:00)", NEW_YEAR, time=at("07:00"), zone=KATHMANDU,
      by_hand="2026-01-01T01:15Z")
fixed("daily(12:00, zone: Pacific/Kiritimati)", NEW_YEAR, time=at("12:00"),
      zone="Pacific/Kiritimati")
fixed("daily(12:00, zone: Pacific/Pago_Pago)", NEW_YEAR, time=at("12:00"), zone="Pacific/Pago_Pago")
fixed("daily(08:00)", "1960-02-27T12:00Z", time=at("08:00"))
# The calendar ends at 9999-12-30T22:00Z.
fixed("daily(03:00)", "9999-12-28T12:00Z 9999-12-30T03:00Z", time=at("03:00"),
      by_hand="9999-12-29T03:00Z 9999-12-30T03:00Z")
# The 31st at 03:00 in Kolkata is 21:30Z of the 30th: still within the calendar.
fixed("daily(03:00, zone: Asia/Kolkata)", "9999-12-29T00:00Z", time=at("03:00"), zone=KOLKATA,
      by_hand="9999-12-29T21:30Z 9999-12-30T21:30Z")

kind("every")
wall("every(5 minutes)", "2026-01-01T00:00Z 2026-01-01T23:52:01Z", time=marks(300))
wall("every(1 min)", "2026-12-31T23:58:30Z", time=marks(60))
wall("every(90 m)", NEW_YEAR, time=marks(5400), count=6)
# 100 does not divide 1,440: 23:20 is the last fire of a day and midnight follows.
wall("every(100 minutes)", "2026-01-01T21:40Z", time=marks(6000),
     by_hand="2026-01-01T23:20Z 2026-01-02T00:00Z 2026-01-02T01:40Z")
wall("every(1 hour)", "2026-01-01T22:00Z", time=marks(3600))
wall("every(2 h)", "2026-01-01T22:00:01Z", time=marks(7200))
# 00, 07, 14, 21, then again from midnight.
wall("every(7 hours)", "2026-01-01T14:00Z", time=marks(25200), count=6,
     by_hand="2026-01-01T21:00Z 2026-01-02T00:00Z 2026-01-02T07:00Z")
wall("every(23 hours)", NEW_YEAR, time=marks(82800))
wall("every(24 hours)", NEW_YEAR, time=marks(86400))
wall("every(1440 minutes, zone: America/New_York)", NEW_YEAR, time=marks(86400), zone=NEW_YORK)
wall("every(86400 seconds)", NEW_YEAR, time=marks(86400))
wall("every(1 s)", "2026-01-01T00:00:00.25Z 2027-12-31T23:59:57Z", time=marks(1), step=1)
wall("every(45 sec)", "2026-01-01T23:57:00Z", time=marks(45), step=1, count=6)
wall("every(7 seconds)", "2026-01-01T23:59:40Z", time=marks(7), step=1, count=6)
wall("every(3601 second)", "2026-01-01T22:00Z", time=marks(3601), step=1)
wall("EVERY(30 Minutes, zone: Asia/Kolkata)", NEW_YEAR, time=marks(1800), zone=KOLKATA)
wall("every(1 hours, zone: Asia/Kathmandu)", NEW_YEAR, time=marks(3600), zone=KATHMANDU)
wall("every(3 hours, zone: Australia/Lord_Howe)", NEW_YEAR, time=marks(10800), zone=LORD_HOWE)

kind("weekly")
fixed("weekly(mon, 09:00)", "2026-01-05T09:00Z 2026-01-05T08:59Z", day=on(MON), time=at("09:00"))
fixed("weekly(mon, thu, 09:00)", NEW_YEAR, day=on(MON, THU), time=at("09:00"))
fixed("weekly(09:00, Thursday, 18:00, Monday)", NEW_YEAR, day=on(MON, THU),
      time=at("09:00 18:00"), count=6)
fixed("weekly(mon-fri, 09:00)", "2026-01-01T10:00Z", day=on(*WEEKDAYS), time=at("09:00"))
fixed("weekly(weekdays, 22:00)", "2026-01-02T22:00Z", day=on(*WEEKDAYS), time=at("22:00"))
fixed("weekly(weekend, 10:00)", NEW_YEAR, day=on(*WEEKEND), time=at("10:00"))
fixed("weekly(sat-mon, 08:00)", NEW_YEAR, day=on(SAT, SUN, MON), time=at("08:00"))
fixed("weekly(weekend, wed, 08:00)", NEW_YEAR, day=on(SAT, SUN, WED), time=at("08:00"), count=6)
fixed("weekly(sun, 23:30, zone: America/New_York)", NEW_YEAR, day=on(SUN), time=at("23:30"),
      zone=NEW_YORK)
fixed("weekly(mon, 02:00, zone: Asia/Kathmandu)", NEW_YEAR, day=on(MON), time=at("02:00"),
      zone=KATHMANDU)

kind("monthly")
fixed("monthly(1, 06:00)", "2026-11-01T06:00Z", day=dates(1), time=at("06:00"))
fixed("monthly(1, 15, 06:00)", NEW_YEAR, day=dates(1, 15), time=at("06:00"), count=6)
fixed("monthly(30, 06:00)", NEW_YEAR, day=dates(30), time=at("06:00"))
fixed("monthly(29, 06:00)", "2026-01-30T00:00Z 2028-01-30T00:00Z", day=dates(29), time=at("06:00"))
# Months of 31 days: January, March, May, July, August, October, December.
fixed("monthly(31, 06:00)", NEW_YEAR, day=dates(31), time=at("06:00"), count=6,
      by_hand="2026-01-31T06:00Z 2026-03-31T06:00Z 2026-05-31T06:00Z 2026-07-31T06:00Z")
fixed("monthly(last, 06:00)", NEW_YEAR, day=last_day, time=at("06:00"), count=5)
fixed("monthly(last, 23:59)", "2027-12-31T23:59Z 2099-12-31T23:59Z", day=last_day,
      time=at("23:59"))
fixed("monthly(31, last, 06:00)", NEW_YEAR, day=last_day, time=at("06:00"), count=6)
fixed("monthly(30, last, 06:00)", NEW_YEAR, day=any_of(dates(30), last_day), time=at("06:00"),
      count=6)
fixed("monthly(last, 1, 00:00, zone: Europe/Berlin)", "2026-03-30T00:00Z",
      day=any_of(dates(1), last_day), time=at("00:00"), zone=BERLIN)
fixed("monthly(1, 15, last, 06:00, 18:00)", "2026-02-15T00:00Z",
      day=any_of(dates(1, 15), last_day), time=at("06:00 18:00"), count=6)
fixed("monthly(1, 03:00, zone: Asia/Kolkata)", NEW_YEAR, day=dates(1), time=at("03:00"),
      zone=KOLKATA)

kind("leap years")
# 2028 is a leap year, 2027 is not.
fixed("monthly(29, 12:00, months: feb)", "2026-01-01T00:00Z 2028-02-29T12:00Z",
      day=all_of(dates(29), months(2)), time=at("12:00"), by_hand="2028-02-29T12:00Z")
# 2100 is divisible by 100 but not by 400: the next leap year after 2096 is 2104.
fixed("monthly(29, 12:00, months: feb)", "2096-02-29T12:00Z",
      day=all_of(dates(29), months(2)), time=at("12:00"),
      by_hand="2104-02-29T12:00Z 2108-02-29T12:00Z")
fixed("monthly(last, 12:00, months: feb)", "2026-03-01T00:00Z 2098-03-01T00:00Z",
      day=all_of(last_day, months(2)), time=at("12:00"))
fixed("daily(12:00, months: feb, weeks: fifth)", "2098-01-01T00:00Z",
      day=all_of(week(5), months(2)), time=at("12:00"))
# 29 February 2016 was a Monday; the weekdays repeat after 28 years.
fixed("monthly(29, 12:00, months: feb, days: mon)", "2016-02-28T00:00Z",
      day=all_of(dates(29), months(2), on(MON)), time=at("12:00"), count=3,
      by_hand="2016-02-29T12:00Z 2044-02-29T12:00Z 2072-02-29T12:00Z")
# Across 2100 it takes 40 years.
fixed("monthly(29, 12:00, months: feb, days: mon)", "2072-03-01T00:00Z",
      day=all_of(dates(29), months(2), on(MON)), time=at("12:00"), count=3,
      by_hand="2112-02-29T12:00Z")
cron(fixed, "0 12 29 2 *", "2026-01-01T00:00Z 2096-03-01T00:00Z")
cron(fixed, "0 0 29 FEB *", "2028-02-29T00:00Z", more=", days: mon", day=on(MON), count=3)
cron(fixed, "0 12 L 2 *", "2026-01-01T00:00Z 2099-01-01T00:00Z")
fixed("daily(12:00)", "2028-02-27T12:00Z 2100-02-27T12:00Z", time=at("12:00"),
      by_hand="2028-02-28T12:00Z 2028-02-29T12:00Z 2028-03-01T12:00Z")
wall("every(12 hours)", "2100-02-28T00:00Z", time=marks(43200),
     by_hand="2100-02-28T12:00Z 2100-03-01T00:00Z")
fixed("once(2028-02-29 12:00)", NEW_YEAR, day=lambda d: str(d) == "2028-02-29", time=at("12:00"))
fixed("monthly(29, 00:00, every: 12, from: 2024-02-01)", "2026-01-01T00:00Z 2090-01-01T00:00Z",
      day=all_of(dates(29), every_months(12, "2024-02-01")), time=at("00:00"))
fixed("daily(12:00, every: 366, from: 2027-03-01)", NEW_YEAR, day=every_days(366, "2027-03-01"),
      time=at("12:00"))

kind("nth")
fixed("nth(first, mon, 09:00)", "2026-01-05T09:00Z", day=all_of(week(1), on(MON)),
      time=at("09:00"))
fixed("nth(second, tuesday, 09:00)", NEW_YEAR, day=all_of(week(2), on(TUE)), time=at("09:00"))
fixed("nth(third, wed, 09:00)", NEW_YEAR, day=all_of(week(3), on(WED)), time=at("09:00"))
fixed("nth(fourth, thu, 09:00)", NEW_YEAR, day=all_of(week(4), on(THU)), time=at("09:00"))
fixed("nth(fifth, fri, 09:00)", NEW_YEAR, day=all_of(week(5), on(FRI)), time=at("09:00"), count=5)
fixed("nth(last, fri, 09:00)", NEW_YEAR, day=all_of(last_seven, on(FRI)), time=at("09:00"),
      count=5)
# February 2027 has four Fridays, the last is the 26th; 5, 12, 19, 26: both fourth and last.
fixed("nth(fourth, last, fri, 09:00)", "2027-02-01T00:00Z",
      day=all_of(any_of(week(4), last_seven), on(FRI)), time=at("09:00"), count=5,
      by_hand="2027-02-26T09:00Z 2027-03-26T09:00Z 2027-04-23T09:00Z 2027-04-30T09:00Z")
fixed("nth(fifth, last, sun, 09:00)", NEW_YEAR, day=all_of(last_seven, on(SUN)), time=at("09:00"))
fixed("nth(first, third, mon, fri, 09:00)", NEW_YEAR, day=all_of(week(1, 3), on(MON, FRI)),
      time=at("09:00"), count=6)
fixed("nth(last, weekdays, 17:00)", "2026-02-20T00:00Z",
      day=all_of(last_seven, on(*WEEKDAYS)), time=at("17:00"), count=6)
fixed("nth(sat-sun, second, 10:00)", NEW_YEAR, day=all_of(week(2), on(*WEEKEND)), time=at("10:00"))
fixed("nth(fifth, sun, 08:00, months: feb)", "2026-01-01T00:00Z",
      day=all_of(week(5), on(SUN), months(2)), time=at("08:00"), count=3)
fixed("nth(first, mon, 09:00, 12:00, zone: America/New_York)", NEW_YEAR,
      day=all_of(week(1), on(MON)), time=at("09:00 12:00"), zone=NEW_YORK)
fixed("nth(first, last, mon, 09:00, every: 3, from: 2026-02-14)", NEW_YEAR,
      day=all_of(any_of(week(1), last_seven), on(MON), every_months(3, "2026-02-14")),
      time=at("09:00"), count=6)
fixed("nth(fifth, thu, 09:00, every: 2)", NEW_YEAR,
      day=all_of(week(5), on(THU), every_months(2)), time=at("09:00"))

kind("once")
ONCE = {"day": lambda d: str(d) == "2026-06-01", "time": at("09:00")}
fixed("once(2026-06-01 09:00)", "2026-01-01T00:00Z 2026-06-01T08:59:59Z", **ONCE)
fixed("once(2026-06-01 09:00)", "2026-06-01T09:00Z 2030-01-01T00:00Z", **ONCE)
fixed("once(2026-06-01T09:00, zone: Europe/Berlin)", NEW_YEAR, zone=BERLIN, **ONCE)
fixed("once(2026-06-01 09:00:00, zone: Asia/Kathmandu)", NEW_YEAR, zone=KATHMANDU, **ONCE)
fixed("once(2026-06-01T09:00:17)", NEW_YEAR, day=ONCE["day"], time=at("09:00:17"), step=1)
fixed("once(2019-06-01 09:00)", NEW_YEAR, day=lambda d: str(d) == "2019-06-01", time=at("09:00"))
fixed("once(2090-12-31 23:59)", NEW_YEAR, day=lambda d: str(d) == "2090-12-31", time=at("23:59"))
fixed("once(1987-06-01 09:00)", "1980-01-01T00:00Z 2026-01-01T00:00Z",
      day=lambda d: str(d) == "1987-06-01", time=at("09:00"))
fixed("once(2150-06-01 09:00)", NEW_YEAR, day=lambda d: str(d) == "2150-06-01", time=at("09:00"))
# In the gap of 29 March 2026: 02:00 CET is 03:00 CEST is 01:00Z.
fixed("once(2026-03-29 02:30, zone: Europe/Berlin)", "2026-01-01T00:00Z 2026-03-29T01:00Z",
      day=lambda d: str(d) == "2026-03-29", time=at("02:30"), zone=BERLIN,
      by_hand="2026-03-29T01:00Z")
# In the overlap of 25 October 2026, the first time: still CEST, two hours ahead.
fixed("once(2026-10-25 02:30, zone: Europe/Berlin)", "2026-01-01T00:00Z 2026-10-25T00:30Z",
      day=lambda d: str(d) == "2026-10-25", time=at("02:30"), zone=BERLIN,
      by_hand="2026-10-25T00:30Z")
fixed("once(2026-11-01 01:15, zone: America/New_York)", NEW_YEAR,
      day=lambda d: str(d) == "2026-11-01", time=at("01:15"), zone=NEW_YORK)
# The day that Samoa skipped: the first instant after it is 31 December, 00:00 at +14.
fixed("once(2011-12-30 12:00, zone: Pacific/Apia)", "2011-01-01T00:00Z",
      day=lambda d: str(d) == "2011-12-30", time=at("12:00"), zone=APIA,
      by_hand="2011-12-30T10:00Z")

kind("every nth")
# 5 January 2026 is a Monday; the 5th, the 19th, 2 February.
fixed("weekly(mon, 09:00, every: 2, from: 2026-01-05)", NEW_YEAR,
      day=all_of(on(MON), every_weeks(2, "2026-01-05")), time=at("09:00"),
      by_hand="2026-01-05T09:00Z 2026-01-19T09:00Z 2026-02-02T09:00Z")
# Sunday the 11th is in the same week, so the Mondays are the same, but the 5th is too early.
fixed("weekly(mon, 09:00, every: 2, from: 2026-01-11)", NEW_YEAR,
      day=all_of(on(MON), every_weeks(2, "2026-01-11")), time=at("09:00"),
      by_hand="2026-01-19T09:00Z 2026-02-02T09:00Z")
fixed("weekly(mon, thu, 09:00, every: 2, from: 2026-01-08)", NEW_YEAR,
      day=all_of(on(MON, THU), every_weeks(2, "2026-01-08")), time=at("09:00"), count=6)
fixed("weekly(mon, sun, 09:00, every: 2, from: 2026-01-12)", NEW_YEAR,
      day=all_of(on(MON, SUN), every_weeks(2, "2026-01-12")), time=at("09:00"), count=6)
# Three weeks from 14 December 2026 is 4 January 2027, though 2026 has 53 weeks.
fixed("weekly(mon, 09:00, every: 3, from: 2026-12-14)", "2026-11-01T00:00Z 2026-12-14T09:00Z",
      day=all_of(on(MON), every_weeks(3, "2026-12-14")), time=at("09:00"),
      by_hand="2026-12-14T09:00Z 2027-01-04T09:00Z")
fixed("weekly(weekend, 09:00, every: 3, from: 2030-05-01)", "2026-12-01T00:00Z",
      day=all_of(on(*WEEKEND), every_weeks(3, "2030-05-01")), time=at("09:00"), count=6)
fixed("weekly(wed, 09:00, every: 2)", "2026-12-20T00:00Z 1969-12-01T00:00Z",
      day=all_of(on(WED), every_weeks(2)), time=at("09:00"))
fixed("weekly(fri, 18:00, every: 52, from: 2026-01-01, zone: Europe/Berlin)", NEW_YEAR,
      day=all_of(on(FRI), every_weeks(52, "2026-01-01")), time=at("18:00"), zone=BERLIN)
fixed("weekly(tue, 00:15, every: 1, from: 2026-01-01)", NEW_YEAR, day=on(TUE), time=at("00:15"))
fixed("daily(09:00, every: 2, from: 2026-01-05)", NEW_YEAR, day=every_days(2, "2026-01-05"),
      time=at("09:00"), by_hand="2026-01-05T09:00Z 2026-01-07T09:00Z 2026-01-09T09:00Z")
fixed("daily(09:00, 21:00, every: 10)", NEW_YEAR, day=every_days(10), time=at("09:00 21:00"))
fixed("daily(09:00, every: 3, from: 2026-01-05)", "2027-12-30T00:00Z 2028-02-27T00:00Z",
      day=every_days(3, "2026-01-05"), time=at("09:00"))
fixed("daily(09:00, every: 1000, from: 2020-02-29)", NEW_YEAR,
      day=every_days(1000, "2020-02-29"), time=at("09:00"))
fixed("daily(04:00, every: 7, from: 2040-01-01, zone: America/New_York)", NEW_YEAR,
      day=every_days(7, "2040-01-01"), time=at("04:00"), zone=NEW_YORK)
fixed("daily(09:00, every: 2, from: 2026-01-01, days: weekdays)", NEW_YEAR,
      day=all_of(every_days(2, "2026-01-01"), on(*WEEKDAYS)), time=at("09:00"), count=6)
fixed("monthly(1, 09:00, every: 3, from: 2026-01-15)", "2025-01-01T09:00Z 2026-01-15T00:00Z",
      day=all_of(dates(1), every_months(3, "2026-01-15")), time=at("09:00"),
      by_hand="2026-04-01T09:00Z 2026-07-01T09:00Z")
fixed("monthly(last, 09:00, every: 2)", NEW_YEAR, day=all_of(last_day, every_months(2)),
      time=at("09:00"))
fixed("monthly(31, 09:00, every: 5, from: 2026-01-31)", NEW_YEAR,
      day=all_of(dates(31), every_months(5, "2026-01-31")), time=at("09:00"))
fixed("monthly(1, last, 09:00, every: 12, from: 2030-02-28)", NEW_YEAR,
      day=all_of(any_of(dates(1), last_day), every_months(12, "2030-02-28")), time=at("09:00"))
fixed("monthly(10, 09:00, every: 18, from: 2026-11-10)", "2026-11-10T09:00Z",
      day=all_of(dates(10), every_months(18, "2026-11-10")), time=at("09:00"))

kind("dates")
fixed("daily(09:00, from: 2026-02-01)", "2026-01-01T00:00Z 2026-02-01T09:00Z",
      day=period("2026-02-01"), time=at("09:00"), by_hand="2026-02-01T09:00Z 2026-02-02T09:00Z")
fixed("daily(09:00, from: 2026-02-01, until: 2026-02-02)", NEW_YEAR,
      day=period("2026-02-01", "2026-02-02"), time=at("09:00"))
# The first and the last minute of these days in New York.
fixed("daily(00:00, 23:59, from: 2026-02-01, until: 2026-02-01, zone: America/New_York)", NEW_YEAR,
      day=period("2026-02-01", "2026-02-01"), time=at("00:00 23:59"), zone=NEW_YORK,
      by_hand="2026-02-01T05:00Z 2026-02-02T04:59Z")
wall("every(6 hours, from: 2026-02-01, until: 2026-02-01, zone: Pacific/Apia)", NEW_YEAR,
     day=period("2026-02-01", "2026-02-01"), time=at("00:00 06:00 12:00 18:00"), zone=APIA)
cron(fixed, "0 6 * * *", "2026-01-30T00:00Z", more=", until: 2026-01-31",
     day=period(last="2026-01-31"))
fixed("weekly(mon, 09:00, every: 2, until: 2026-01-31)", NEW_YEAR,
      day=all_of(on(MON), every_weeks(2), period(last="2026-01-31")), time=at("09:00"))

kind("filters")


def office(clock):
    return 9 <= clock.hour < 17


def night(clock):
    return clock.hour >= 22 or clock.hour < 6


wall("every(1 hour, between: 09:00-17:00)", "2026-01-01T14:30Z 2026-01-01T09:00Z",
     time=marks(3600), only=office)
wall("every(20 minutes, between: 09:00-17:00, days: mon-fri)", "2026-01-02T16:00Z",
     day=on(*WEEKDAYS), time=marks(1200), only=office, count=5)
wall("every(2 hours, between: 22:00-06:00)", NEW_YEAR, time=marks(7200), only=night, count=6)
# The filter applies to the day of the fire itself: the early hours of Friday belong to Friday.
wall("every(2 hours, between: 22:00-06:00, days: fri)", NEW_YEAR, day=on(FRI), time=marks(7200),
     only=night, count=6,
     by_hand="2026-01-02T00:00Z 2026-01-02T02:00Z 2026-01-02T04:00Z 2026-01-02T22:00Z")
wall("every(3 hours, between: 18:00-00:00)", NEW_YEAR, time=marks(10800),
     only=lambda clock: clock.hour >= 18)
wall("every(50 minutes, between: 23:00-01:00, zone: Asia/Kolkata)", NEW_YEAR, time=marks(3000),
     only=lambda clock: clock.hour in (23, 0), zone=KOLKATA, count=6)
wall("every(10 seconds, between: 09:00:15-09:00:40)", NEW_YEAR, time=marks(10),
     only=lambda clock: clock.hour == 9 and clock.minute == 0 and 15 <= clock.second < 40, step=1)
wall("every(1 s, between: 23:59:59-00:00:01)", NEW_YEAR, time=marks(1), step=1,
     only=lambda clock: str(clock) in ("23:59:59", "00:00:00"))
wall("every(1 hour, between: 09:00-09:01)", NEW_YEAR, time=marks(3600),
     only=lambda clock: clock.hour == 9)
wall("every(6 hours, months: feb)", "2026-02-28T12:00Z 2028-02-28T18:00Z", day=months(2),
     time=marks(21600))
wall("every(8 hours, months: nov-feb, weeks: last)", "2026-02-28T10:00Z",
     day=all_of(months(11, 12, 1, 2), last_seven), time=marks(28800))
wall("every(12 hours, weeks: fifth)", "2026-01-30T12:00Z", day=week(5), time=marks(43200),
     count=6)
fixed("daily(08:00, days: mon wed fri)", NEW_YEAR, day=on(MON, WED, FRI), time=at("08:00"))
fixed("daily(08:00, days: sat-mon thu)", NEW_YEAR, day=on(SAT, SUN, MON, THU), time=at("08:00"),
      count=6)
fixed("daily(08:00, days: Weekend)", NEW_YEAR, day=on(*WEEKEND), time=at("08:00"))
fixed("daily(08:00, days: weekdays, zone: Pacific/Apia)", NEW_YEAR, day=on(*WEEKDAYS),
      time=at("08:00"), zone=APIA)
fixed("daily(08:00, months: jan mar-may dec)", "2026-01-30T00:00Z 2026-05-30T00:00Z",
      day=months(1, 3, 4, 5, 12), time=at("08:00"))
fixed("daily(08:00, months: november-january)", "2026-01-30T09:00Z", day=months(11, 12, 1),
      time=at("08:00"))
fixed("daily(08:00, weeks: first)", "2026-01-06T00:00Z", day=week(1), time=at("08:00"))
fixed("daily(08:00, weeks: second fourth)", "2026-02-13T00:00Z", day=week(2, 4), time=at("08:00"))
fixed("daily(08:00, weeks: third)", "2026-02-20T00:00Z", day=week(3), time=at("08:00"))
# February 2026 ends with the 28th, so its last seven days begin with the 22nd.
fixed("daily(08:00, weeks: last)", "2026-02-01T00:00Z 2026-03-01T00:00Z 2028-02-01T00:00Z",
      day=last_seven, time=at("08:00"), by_hand="2026-02-22T08:00Z")
fixed("daily(08:00, weeks: first last)", "2026-04-06T09:00Z", day=any_of(week(1), last_seven),
      time=at("08:00"))
fixed("daily(08:00, weeks: fifth)", "2026-01-31T00:00Z", day=week(5), time=at("08:00"))
fixed("daily(08:00, 12:00, 17:00, between: 11:00-17:00)", NEW_YEAR, time=at("12:00"))
fixed("daily(06:00, 22:00, between: 22:00-06:00)", NEW_YEAR, time=at("22:00"))
fixed("weekly(mon-fri, 08:00, weeks: first, months: jan apr jul oct)", NEW_YEAR,
      day=all_of(on(*WEEKDAYS), week(1), months(1, 4, 7, 10)), time=at("08:00"), count=6)
fixed("weekly(weekdays, 08:00, days: wed-sun)", NEW_YEAR, day=on(WED, THU, FRI), time=at("08:00"))
fixed("weekly(tue, 08:00, weeks: second, months: jun)", NEW_YEAR,
      day=all_of(on(TUE), week(2), months(6)), time=at("08:00"), count=3)
fixed("monthly(13, 08:00, days: fri)", NEW_YEAR, day=all_of(dates(13), on(FRI)), time=at("08:00"))
fixed("monthly(31, 08:00, days: sun, months: dec)", NEW_YEAR,
      day=all_of(dates(31), on(SUN), months(12)), time=at("08:00"), count=3)
fixed("monthly(1, 8, 15, 22, 29, 08:00, weeks: first fifth, days: weekdays)", NEW_YEAR,
      day=all_of(dates(1, 29), on(*WEEKDAYS)), time=at("08:00"), count=6)
fixed("nth(last, sun, 08:00, months: mar oct, weeks: fifth)", NEW_YEAR,
      day=all_of(last_seven, on(SUN), months(3, 10), week(5)), time=at("08:00"))
fixed("nth(fifth, mon, tue, 08:00, days: tue, months: jul-dec)", NEW_YEAR,
      day=all_of(week(5), on(TUE), months(7, 8, 9, 10, 11, 12)), time=at("08:00"))
# The date is the local one: in New York it is still Friday.
fixed("daily(20:00, days: fri, zone: America/New_York)", NEW_YEAR, day=on(FRI), time=at("20:00"),
      zone=NEW_YORK, by_hand="2026-01-03T01:00Z")

kind("cron")
cron(fixed, "30 2 * * 1-5", NEW_YEAR)
fixed("cron(30 2 * * 1-5, zone: Europe/Berlin)", NEW_YEAR, day=on(*WEEKDAYS), time=at("02:30"),
      zone=BERLIN)
fixed("cron(0 6 1 * *)", NEW_YEAR, day=dates(1), time=at("06:00"))
cron(fixed, "0 6 * * *", "4999-12-30T00:00Z 9999-12-29T00:00Z")
cron(wall, "* * * * *", "2026-12-31T23:58:30Z")
cron(wall, "*/15 * * * *", "2026-01-01T23:20Z")
cron(wall, "*/25 * * * *", "2026-01-01T23:20Z", count=6)
cron(wall, "5-59/20 * * * *", NEW_YEAR)
cron(wall, "0 */5 * * *", "2026-01-01T14:00Z", count=5)
cron(fixed, "1,2,50-52 3 * * *", NEW_YEAR, count=6)
cron(fixed, "0 9-17/4 * * MON-FRI", "2026-01-02T12:00Z")
cron(fixed, "15 8,20 * * SAT,SUN", NEW_YEAR)
cron(fixed, "0 0 * * 0", NEW_YEAR)
cron(fixed, "0 0 * * 7", NEW_YEAR)
cron(fixed, "0 0 * * 5-7", NEW_YEAR)
cron(fixed, "0 0 * * 0-2", NEW_YEAR)
cron(fixed, "0 0 * JAN,JUL mon", "2026-01-20T00:00Z")
cron(fixed, "0 0 1 */4 *", NEW_YEAR)
cron(fixed, "0 0 1 3-11/4 *", NEW_YEAR)
cron(fixed, "0 0 31 * *", NEW_YEAR)
cron(fixed, "0 0 10-20/5 * *", NEW_YEAR)
cron(fixed, "0 0 L * *", "2028-01-31T00:00Z")
cron(fixed, "0 0 1,L * *", "2026-01-31T00:00Z")
# Friday the 13th or any Friday or any 13th: the 2nd, the 9th, Tuesday the 13th, the 16th.
cron(fixed, "0 0 13 * 5", NEW_YEAR, count=5,
     by_hand="2026-01-02T00:00Z 2026-01-09T00:00Z 2026-01-13T00:00Z 2026-01-16T00:00Z")
cron(fixed, "0 0 1,15 * WED", NEW_YEAR, count=6)
cron(fixed, "0 0 L * 5", "2026-01-20T00:00Z", count=5)
cron(fixed, "0 0 1-7 * MON", "2026-02-01T00:00Z", count=6)
cron(fixed, "0 12 * * 5#2", NEW_YEAR)
cron(fixed, "0 12 * * 1#1,1#3", NEW_YEAR)
cron(fixed, "0 12 * * 5#5", NEW_YEAR)
cron(fixed, "0 12 * * 5L", NEW_YEAR)
cron(fixed, "0 12 1 * 5L", NEW_YEAR, count=6)
cron(fixed, "0 12 15W * *", NEW_YEAR, count=6)
# 1 February 2026 is a Sunday, 1 August a Saturday: the nearest weekday of the same month.
cron(fixed, "0 12 1W * *", "2026-01-10T00:00Z", by_hand="2026-02-02T12:00Z")
cron(fixed, "0 12 1W 8 *", NEW_YEAR, count=3, by_hand="2026-08-03T12:00Z")
cron(fixed, "15 30 6 * * *", NEW_YEAR, step=1)
cron(wall, "*/20 * * * * *", "2026-01-01T23:59:15Z", step=1)
cron(wall, "10,40 * * * * *", "2026-01-01T23:59:15Z", step=1)
cron(wall, "*/20 0 12 2 1 *", NEW_YEAR, step=1, count=3)
cron(wall, "0 * * * *", NEW_YEAR, more=", between: 09:00-12:00, days: weekdays",
     day=on(*WEEKDAYS), only=lambda clock: 9 <= clock.hour < 12, count=6)
cron(fixed, "0 7 * * *", NEW_YEAR, more=", weeks: last, months: feb apr",
     day=all_of(last_seven, months(2, 4)))
cron(fixed, "0 7 * * *", NEW_YEAR, zone=KATHMANDU)
cron(wall, "0 */6 * * *", NEW_YEAR, zone=KOLKATA)

if __name__ == "__main__":
    import clock_changes

    for name, lines in KINDS.items():
        print(f"# {name}", *lines, sep="\n")
