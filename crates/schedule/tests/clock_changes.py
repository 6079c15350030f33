"""The cases of `cases.py` with clock changes."""

from brute_force import *

kind("fixed times in a gap")
# Berlin: 02:00 becomes 03:00 on 29 March 2026 at 01:00Z; the day before 02:30 is 01:30Z, the day
# after 00:30Z.
fixed("daily(02:30, zone: Europe/Berlin)", "2026-03-28T00:00Z 2026-03-29T01:00Z",
      time=at("02:30"), zone=BERLIN,
      by_hand="2026-03-28T01:30Z 2026-03-29T01:00Z 2026-03-30T00:30Z")
# Three times that map to one instant are one fire.
fixed("daily(02:00, 02:30, 03:00, zone: Europe/Berlin)",
      "2026-03-28T12:00Z 2026-03-29T01:00Z 2026-03-29T00:59:59.9Z",
      time=at("02:00 02:30 03:00"), zone=BERLIN,
      by_hand="2026-03-29T01:00Z 2026-03-30T00:00Z 2026-03-30T00:30Z")
fixed("daily(01:59, 03:01, zone: Europe/Berlin)", "2026-03-28T12:00Z", time=at("01:59 03:01"),
      zone=BERLIN, by_hand="2026-03-29T00:59Z 2026-03-29T01:01Z")
fixed("daily(02:59:59, zone: Europe/Berlin)", "2026-03-28T12:00Z", time=at("02:59:59"), step=1,
      zone=BERLIN)
# The filters see the time as written: 02:30 is between 02:00 and 03:00, 03:00 is not.
fixed("daily(02:30, between: 02:00-03:00, zone: Europe/Berlin)", "2026-03-28T12:00Z",
      time=at("02:30"), zone=BERLIN, by_hand="2026-03-29T01:00Z")
fixed("daily(02:30, 03:00, between: 03:00-04:00, zone: Europe/Berlin)", "2026-03-28T12:00Z",
      time=at("03:00"), zone=BERLIN)
fixed("daily(02:30, every: 2, from: 2026-03-29, zone: Europe/Berlin)", "2026-03-26T00:00Z",
      day=every_days(2, "2026-03-29"), time=at("02:30"), zone=BERLIN)
fixed("weekly(sun, 02:15, zone: Europe/Berlin)", "2026-03-23T00:00Z", day=on(SUN),
      time=at("02:15"), zone=BERLIN)
# 31 March 2024 was a Sunday, the last of the month, and the day of the change.
fixed("monthly(31, last, 02:30, zone: Europe/Berlin)", "2024-03-01T00:00Z", day=last_day,
      time=at("02:30"), zone=BERLIN, by_hand="2024-03-31T01:00Z 2024-04-30T00:30Z")
fixed("nth(last, sun, 02:30, months: mar oct, zone: Europe/Berlin)", NEW_YEAR,
      day=all_of(last_seven, on(SUN), months(3, 10)), time=at("02:30"), zone=BERLIN,
      by_hand="2026-03-29T01:00Z 2026-10-25T00:30Z")
# New York: 02:00 EST becomes 03:00 EDT on 8 March 2026, the second Sunday, at 07:00Z.
fixed("daily(02:30, zone: America/New_York)", "2026-03-07T00:00Z", time=at("02:30"),
      zone=NEW_YORK, by_hand="2026-03-07T07:30Z 2026-03-08T07:00Z 2026-03-09T06:30Z")
fixed("daily(02:30, zone: America/New_York)", "2006-04-01T12:00Z 2007-03-10T12:00Z",
      time=at("02:30"), zone=NEW_YORK)
fixed("nth(second, sun, 02:00, 03:00, zone: America/New_York)", "2026-03-01T00:00Z",
      day=all_of(week(2), on(SUN)), time=at("02:00 03:00"), zone=NEW_YORK)
# Lord Howe: 02:00 at +10:30 becomes 02:30 at +11 on 4 October 2026; that is 15:30Z the day before.
fixed("daily(02:15, zone: Australia/Lord_Howe)", "2026-10-02T20:00Z", time=at("02:15"),
      zone=LORD_HOWE, by_hand="2026-10-03T15:30Z 2026-10-04T15:15Z")
fixed("daily(01:45, 02:29, 02:30, 02:45, zone: Australia/Lord_Howe)", "2026-10-03T14:00Z",
      time=at("01:45 02:29 02:30 02:45"), zone=LORD_HOWE,
      by_hand="2026-10-03T15:15Z 2026-10-03T15:30Z 2026-10-03T15:45Z")
cron(fixed, "30 2 * * *", "2026-03-28T12:00Z", zone=BERLIN)
cron(fixed, "0-59/20 2 * * *", "2026-03-28T12:00Z", zone=BERLIN, count=5)
cron(fixed, "30 1-3 * * *", "2026-03-28T12:00Z", zone=BERLIN,
     by_hand="2026-03-29T00:30Z 2026-03-29T01:00Z 2026-03-29T01:30Z")
cron(fixed, "0 2,3 * * *", "2026-03-28T12:00Z", zone=BERLIN)
cron(fixed, "15 30 2 * * *", "2026-03-28T12:00Z", zone=BERLIN, step=1)
cron(fixed, "30 2 * * SUN", "2026-03-07T12:00Z", zone=NEW_YORK)
cron(fixed, "10 2 * * *", "2026-10-03T12:00Z", zone=LORD_HOWE)

kind("fixed times in an overlap")
# Berlin: 03:00 CEST becomes 02:00 CET on 25 October 2026 at 01:00Z; the first 02:30 is 00:30Z.
fixed("daily(02:30, zone: Europe/Berlin)", "2026-10-24T12:00Z 2026-10-25T00:30Z 2026-10-25T01:10Z",
      time=at("02:30"), zone=BERLIN, by_hand="2026-10-25T00:30Z 2026-10-26T01:30Z")
# 02:00 and 02:59 the first time, 03:00 exists once and is CET.
fixed("daily(02:00, 02:59, 03:00, zone: Europe/Berlin)", "2026-10-24T12:00Z",
      time=at("02:00 02:59 03:00"), zone=BERLIN,
      by_hand="2026-10-25T00:00Z 2026-10-25T00:59Z 2026-10-25T02:00Z")
fixed("daily(01:30, zone: America/New_York)", "2026-10-31T12:00Z 2026-11-01T05:30Z",
      time=at("01:30"), zone=NEW_YORK, by_hand="2026-11-01T05:30Z 2026-11-02T06:30Z")
# Lord Howe: 02:00 at +11 becomes 01:30 at +10:30 on 5 April 2026; the first 01:45 is at +11.
fixed("daily(01:45, zone: Australia/Lord_Howe)", "2026-04-03T20:00Z", time=at("01:45"),
      zone=LORD_HOWE, by_hand="2026-04-04T14:45Z 2026-04-05T15:15Z")
fixed("daily(01:29, 01:30, 01:59, 02:00, zone: Australia/Lord_Howe)", "2026-04-04T14:00Z",
      time=at("01:29 01:30 01:59 02:00"), zone=LORD_HOWE)
fixed("weekly(sun, 02:15, 02:45, zone: Europe/Berlin)", "2026-10-25T00:20Z", day=on(SUN),
      time=at("02:15 02:45"), zone=BERLIN)
fixed("monthly(25, 02:30:30, zone: Europe/Berlin)", "2026-10-01T00:00Z", day=dates(25),
      time=at("02:30:30"), step=1, zone=BERLIN)
fixed("nth(first, sun, 01:00, zone: America/New_York)", "2026-10-31T00:00Z",
      day=all_of(week(1), on(SUN)), time=at("01:00"), zone=NEW_YORK)
cron(fixed, "30 2 * * *", "2026-10-24T12:00Z 2026-10-25T01:00Z", zone=BERLIN)
cron(fixed, "0-59/20 2 * * *", "2026-10-24T12:00Z", zone=BERLIN,
     by_hand="2026-10-25T00:00Z 2026-10-25T00:20Z 2026-10-25T00:40Z 2026-10-26T01:00Z")
cron(fixed, "30 1-3 * * *", "2026-10-24T12:00Z", zone=BERLIN, count=5)
cron(fixed, "45 1 * * *", "2026-04-04T00:00Z", zone=LORD_HOWE)

kind("the wall clock in a gap")
# 01:30 CET, then 03:00 CEST: 02:00 and 02:30 do not exist on that day.
wall("every(30 minutes, zone: Europe/Berlin)", "2026-03-29T00:15Z", time=marks(1800), zone=BERLIN,
     by_hand="2026-03-29T00:30Z 2026-03-29T01:00Z 2026-03-29T01:30Z")
# 00:00 CET, then 04:00 CEST.
wall("every(2 hours, zone: Europe/Berlin)", "2026-03-28T22:00Z", time=marks(7200), zone=BERLIN,
     by_hand="2026-03-28T23:00Z 2026-03-29T02:00Z 2026-03-29T04:00Z")
wall("every(45 minutes, zone: Europe/Berlin)", "2026-03-29T00:00Z", time=marks(2700), zone=BERLIN)
wall("every(15 minutes, between: 02:00-03:00, zone: Europe/Berlin)", "2026-03-28T01:20Z",
     time=marks(900), only=lambda clock: clock.hour == 2, zone=BERLIN, count=5,
     by_hand="2026-03-28T01:30Z 2026-03-28T01:45Z 2026-03-30T00:00Z")
wall("every(20 minutes, between: 01:30-03:30, days: sun, zone: America/New_York)",
     "2026-03-08T00:00Z", day=on(SUN), time=marks(1200), zone=NEW_YORK,
     only=lambda clock: 90 <= clock.hour * 60 + clock.minute < 210, count=5)
# 01:30 at +10:30, 02:30 at +11 (02:00 is left out), 03:00: still half an hour apart.
wall("every(30 minutes, zone: Australia/Lord_Howe)", "2026-10-03T14:45Z", time=marks(1800),
     zone=LORD_HOWE, by_hand="2026-10-03T15:00Z 2026-10-03T15:30Z 2026-10-03T16:00Z")
wall("every(1 hour, zone: Australia/Lord_Howe)", "2026-10-03T14:00Z", time=marks(3600),
     zone=LORD_HOWE, by_hand="2026-10-03T14:30Z 2026-10-03T16:00Z")
wall("every(10 seconds, zone: Europe/Berlin)", "2026-03-29T00:59:45Z", time=marks(10), step=1,
     zone=BERLIN)
cron(wall, "*/30 * * * *", "2026-03-29T00:00Z", zone=BERLIN)
cron(wall, "30 * * * *", "2026-03-29T00:00Z", zone=BERLIN)
cron(wall, "*/20 2 * * *", "2026-03-28T01:30Z", zone=BERLIN,
     by_hand="2026-03-28T01:40Z 2026-03-30T00:00Z")
cron(wall, "30 */2 * * *", "2026-03-28T22:00Z", zone=BERLIN)
cron(wall, "* 2 * * *", "2026-03-28T01:57Z", zone=BERLIN)
cron(wall, "* 30 2 * * *", "2026-03-28T01:30:57Z", zone=BERLIN, step=1)
cron(wall, "15 * * * *", "2026-10-03T13:00Z", zone=LORD_HOWE)
cron(wall, "*/30 1-3 * * *", "2026-03-08T06:00Z", zone=NEW_YORK, count=5)

kind("the wall clock in an overlap")
# 02:00 and 02:30 CEST, then 02:00 and 02:30 CET.
wall("every(30 minutes, zone: Europe/Berlin)", "2026-10-24T23:45Z", time=marks(1800), zone=BERLIN,
     count=6, by_hand="2026-10-25T00:00Z 2026-10-25T00:30Z 2026-10-25T01:00Z 2026-10-25T01:30Z")
# 00:00 and 02:00 CEST, 02:00 and 04:00 CET.
wall("every(2 hours, zone: Europe/Berlin)", "2026-10-24T21:00Z 2026-10-25T00:30Z",
     time=marks(7200), zone=BERLIN,
     by_hand="2026-10-24T22:00Z 2026-10-25T00:00Z 2026-10-25T01:00Z 2026-10-25T03:00Z")
wall("every(15 minutes, between: 02:00-03:00, zone: Europe/Berlin)", "2026-10-25T00:20Z",
     time=marks(900), only=lambda clock: clock.hour == 2, zone=BERLIN, count=6)
# 01:40 EDT, 01:00 EST.
wall("every(20 minutes, zone: America/New_York)", "2026-11-01T05:30Z", time=marks(1200),
     zone=NEW_YORK, by_hand="2026-11-01T05:40Z 2026-11-01T06:00Z 2026-11-01T06:20Z")
# 01:30 at +11, 01:30 at +10:30, 02:00 at +10:30.
wall("every(30 minutes, zone: Australia/Lord_Howe)", "2026-04-04T14:15Z", time=marks(1800),
     zone=LORD_HOWE, by_hand="2026-04-04T14:30Z 2026-04-04T15:00Z 2026-04-04T15:30Z")
wall("every(1 hour, zone: Australia/Lord_Howe)", "2026-04-04T13:00Z", time=marks(3600),
     zone=LORD_HOWE, by_hand="2026-04-04T14:00Z 2026-04-04T15:30Z")
wall("every(20 seconds, between: 02:59:30-03:00:10, zone: Europe/Berlin)", "2026-10-25T00:58Z",
     time=marks(20), step=1, zone=BERLIN,
     only=lambda clock: "02:59:30" <= str(clock) < "03:00:10")
wall("every(15 minutes, zone: Europe/Berlin)", "2026-10-25T00:59:59.5Z", time=marks(900),
     zone=BERLIN)
cron(wall, "30 * * * *", "2026-10-25T00:00Z", zone=BERLIN)
cron(wall, "*/30 2 * * *", "2026-10-24T12:00Z 2026-10-25T00:45Z", zone=BERLIN, count=5,
     by_hand="2026-10-25T00:00Z 2026-10-25T00:30Z 2026-10-25T01:00Z 2026-10-25T01:30Z")
cron(wall, "15 */2 * * *", "2026-10-24T22:00Z", zone=BERLIN)
cron(wall, "*/30 15 2 * * *", "2026-10-24T12:00Z", zone=BERLIN, step=1, count=5)
cron(wall, "45 * * * *", "2026-04-04T14:00Z", zone=LORD_HOWE)
cron(wall, "0 * * * SUN", "2026-11-01T04:00Z", zone=NEW_YORK)

kind("zones that changed more than an hour")
# Samoa went from -10 to +14 over the whole of Friday, 30 December 2011, at 10:00Z of that day.
# 29 December 09:00 is 19:00Z; 31 December 09:00 is 19:00Z of the 30th.
fixed("daily(09:00, zone: Pacific/Apia)", "2011-12-28T20:00Z", time=at("09:00"), zone=APIA,
      by_hand="2011-12-29T19:00Z 2011-12-30T10:00Z 2011-12-30T19:00Z")
fixed("daily(00:00, 09:00, 17:00, zone: Pacific/Apia)", "2011-12-30T04:00Z",
      time=at("00:00 09:00 17:00"), zone=APIA)
fixed("daily(09:00, days: fri, zone: Pacific/Apia)", "2011-12-20T00:00Z", day=on(FRI),
      time=at("09:00"), zone=APIA)
fixed("weekly(sat, 00:00, zone: Pacific/Apia)", "2011-12-20T00:00Z", day=on(SAT),
      time=at("00:00"), zone=APIA)
fixed("monthly(30, 12:00, zone: Pacific/Apia)", "2011-12-01T00:00Z", day=dates(30),
      time=at("12:00"), zone=APIA)
fixed("daily(09:00, every: 2, from: 2011-12-28, zone: Pacific/Apia)", "2011-12-28T00:00Z",
      day=every_days(2, "2011-12-28"), time=at("09:00"), zone=APIA)
wall("every(6 hours, zone: Pacific/Apia)", "2011-12-29T22:00Z", time=marks(21600), zone=APIA,
     by_hand="2011-12-30T04:00Z 2011-12-30T10:00Z 2011-12-30T16:00Z")
wall("every(8 hours, days: fri, zone: Pacific/Apia)", "2011-12-23T00:00Z", day=on(FRI),
     time=marks(28800), zone=APIA, count=6)
cron(fixed, "0 12 * * FRI", "2011-12-25T00:00Z", zone=APIA)
cron(wall, "0 */12 30 * *", "2011-12-01T00:00Z", zone=APIA)
fixed("daily(12:00, zone: Pacific/Kwajalein)", "1993-08-20T00:00Z", time=at("12:00"),
      zone="Pacific/Kwajalein")
# Troll goes forward two hours, from 01:00 to 03:00, and back.
fixed("daily(01:30, 02:30, zone: Antarctica/Troll)", "2026-03-28T12:00Z 2026-10-24T12:00Z",
      time=at("01:30 02:30"), zone="Antarctica/Troll")
wall("every(1 hour, zone: Antarctica/Troll)", "2026-03-28T23:30Z 2026-10-24T23:30Z",
     time=marks(3600), zone="Antarctica/Troll", count=6)

kind("zones that changed at midnight or otherwise")
# Sao Paulo: 4 November 2018 begins at 01:00, at 03:00Z.
fixed("daily(00:00, zone: America/Sao_Paulo)", "2018-11-02T12:00Z", time=at("00:00"),
      zone=SAO_PAULO, by_hand="2018-11-03T03:00Z 2018-11-04T03:00Z 2018-11-05T02:00Z")
fixed("daily(00:30, 01:00, days: sun, zone: America/Sao_Paulo)", "2018-11-02T12:00Z",
      day=on(SUN), time=at("00:30 01:00"), zone=SAO_PAULO)
wall("every(24 hours, zone: America/Sao_Paulo)", "2018-11-02T12:00Z", time=marks(86400),
     zone=SAO_PAULO, by_hand="2018-11-03T03:00Z 2018-11-05T02:00Z")
wall("every(30 minutes, zone: America/Sao_Paulo)", "2018-11-04T02:15Z", time=marks(1800),
     zone=SAO_PAULO)
cron(fixed, "0 0 4 11 *", "2018-01-01T00:00Z", zone=SAO_PAULO, count=3)
cron(wall, "0 * 4 11 *", "2018-01-01T00:00Z", zone=SAO_PAULO)
# 18 February 2018 at 02:00Z: midnight becomes 23:00 of the 17th.
fixed("daily(23:30, 00:00, zone: America/Sao_Paulo)", "2018-02-17T12:00Z",
      time=at("23:30 00:00"), zone=SAO_PAULO, by_hand="2018-02-18T01:30Z 2018-02-18T03:00Z")
wall("every(30 minutes, between: 23:00-00:00, days: sat, zone: America/Sao_Paulo)",
     "2018-02-17T12:00Z", day=on(SAT), time=marks(1800), only=lambda clock: clock.hour == 23,
     zone=SAO_PAULO, count=6)
# Cairo: Friday, 26 April 2024, begins at 01:00; Thursday, 31 October, ends an hour late.
fixed("weekly(fri, 00:00, zone: Africa/Cairo)", "2024-04-20T00:00Z", day=on(FRI),
      time=at("00:00"), zone=CAIRO, by_hand="2024-04-25T22:00Z 2024-05-02T21:00Z")
fixed("monthly(last, 23:30, zone: Africa/Cairo)", "2024-10-01T00:00Z", day=last_day,
      time=at("23:30"), zone=CAIRO)
wall("every(1 hour, days: thu, zone: Africa/Cairo)", "2024-10-31T18:30Z", day=on(THU),
     time=marks(3600), zone=CAIRO)
wall("every(24 hours, zone: Africa/Cairo)", "2024-04-24T12:00Z 2024-10-30T12:00Z",
     time=marks(86400), zone=CAIRO)
# Pyongyang: half an hour back at midnight of 15 August 2015, forward at 23:30 of 4 May 2018.
fixed("daily(23:45, zone: Asia/Pyongyang)", "2015-08-13T12:00Z 2018-05-03T12:00Z",
      time=at("23:45"), zone=PYONGYANG,
      by_hand="2015-08-13T14:45Z 2015-08-14T14:45Z 2015-08-15T15:15Z")
fixed("daily(23:30, days: fri, zone: Asia/Pyongyang)", "2018-05-01T00:00Z", day=on(FRI),
      time=at("23:30"), zone=PYONGYANG)
wall("every(15 minutes, zone: Asia/Pyongyang)", "2015-08-14T14:20Z 2018-05-04T14:20Z",
     time=marks(900), zone=PYONGYANG, count=6)
fixed("daily(02:30, zone: Europe/Volgograd)", "2018-10-26T12:00Z", time=at("02:30"),
      zone=VOLGOGRAD)
fixed("daily(01:30, zone: Europe/Volgograd)", "2020-12-25T12:00Z", time=at("01:30"),
      zone=VOLGOGRAD)
wall("every(30 minutes, zone: Europe/Volgograd)", "2018-10-27T22:15Z 2020-12-26T21:15Z",
     time=marks(1800), zone=VOLGOGRAD, count=5)
fixed("daily(02:30, zone: Africa/Casablanca)", "2024-03-09T00:00Z 2024-04-12T12:00Z",
      time=at("02:30"), zone=CASABLANCA)
wall("every(1 hour, between: 01:00-04:00, zone: Africa/Casablanca)",
     "2024-03-09T12:00Z 2024-04-13T12:00Z", time=marks(3600),
     only=lambda clock: 1 <= clock.hour < 4, zone=CASABLANCA, count=5)
fixed("daily(03:00, zone: Pacific/Chatham)", "2026-04-03T00:00Z 2026-09-25T00:00Z",
      time=at("03:00"), zone=CHATHAM)
wall("every(30 minutes, zone: Pacific/Chatham)", "2026-04-04T13:00Z 2026-09-26T13:00Z",
     time=marks(1800), zone=CHATHAM, count=5)
# Kathmandu: 1986 begins at 00:15.
fixed("daily(00:00, 00:10, 00:20, zone: Asia/Kathmandu)", "1985-12-31T12:00Z",
      time=at("00:00 00:10 00:20"), zone=KATHMANDU, by_hand="1985-12-31T18:30Z 1985-12-31T18:35Z")
fixed("daily(02:45, zone: America/Caracas)", "2016-04-29T12:00Z", time=at("02:45"),
      zone="America/Caracas")
fixed("daily(00:30, zone: America/Havana)", "2026-03-07T00:00Z 2026-10-31T00:00Z",
      time=at("00:30"), zone="America/Havana")
fixed("daily(01:30, zone: Europe/Dublin)", "2026-03-28T00:00Z 2026-10-24T00:00Z",
      time=at("01:30"), zone="Europe/Dublin")
