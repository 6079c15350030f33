//! Time zone of the browser, which `console.js` stores in a cookie.

use axum::http::{HeaderMap, header};
use jiff::tz::TimeZone;

/// Name of the cookie.
const COOKIE: &str = "pgmill_zone";

/// Returns the time zone of the browser; UTC if the browser has sent none or an unknown one.
pub(super) fn time_zone(headers: &HeaderMap) -> TimeZone {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|it| it.to_str().ok());
    let mut pairs = cookies.flat_map(|it| it.split(';')).filter_map(|it| it.trim().split_once('='));
    let name = pairs.find(|(name, _)| *name == COOKIE).map_or("UTC", |(_, zone)| zone);
    let plain = name.bytes().all(|it| it.is_ascii_alphanumeric() || b"/_+-".contains(&it));
    if !plain {
        return TimeZone::UTC;
    }
    TimeZone::get(name).unwrap_or(TimeZone::UTC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(cookie: &str) -> String {
        let headers = HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())]);
        time_zone(&headers).iana_name().unwrap_or("?").to_owned()
    }

    #[test]
    fn an_unknown_zone_is_utc() {
        assert_eq!(zone("pgmill=x; pgmill_zone=Europe/Berlin"), "Europe/Berlin");
        for cookie in ["pgmill_zone=Mars/Base", "pgmill_zone=../../etc/passwd", "pgmill_zone=", "a"]
        {
            assert_eq!(zone(cookie), "UTC", "{cookie}");
        }
    }
}
