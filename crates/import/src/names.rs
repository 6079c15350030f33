//! Names of imported jobs and schedules, and the profiles as which they run.

use std::collections::{BTreeMap, BTreeSet};

use crate::args::RunAs;

/// Maximum length of a name in bytes. A name may have 512 bytes with its prefix.
const MAX_BYTES: usize = 400;

/// Chooses the names. Each is valid and unique, and depends on the definitions alone, so that the
/// next import chooses the same names.
pub(crate) struct Names {
    prefix: String,
    /// How often each name is wanted, by the name in lower case.
    wanted: BTreeMap<String, usize>,
    used: BTreeSet<String>,
}

impl Names {
    /// `wanted` has the names of all definitions.
    pub(crate) fn new<'a>(prefix: &str, wanted: impl Iterator<Item = &'a str>) -> Self {
        let mut counts = BTreeMap::new();
        for name in wanted {
            *counts.entry(valid(name).to_lowercase()).or_default() += 1;
        }
        Self { prefix: prefix.to_owned(), wanted: counts, used: BTreeSet::new() }
    }

    /// Returns the name of the definition with this id. It differs from the name in the source if
    /// that is not valid, or if several definitions have it; it then ends with the id.
    pub(crate) fn choose(&mut self, wanted: &str, id: &str) -> String {
        let plain = valid(wanted);
        let alone = self.wanted.get(&plain.to_lowercase()) == Some(&1) && !plain.is_empty();
        let mut name = if alone { plain } else { format!("{plain}_{}", valid(id)) };
        while !alone && self.wanted.contains_key(&name.to_lowercase())
            || !self.used.insert(name.to_lowercase())
        {
            name.push('_');
        }
        format!("{}{name}", self.prefix)
    }
}

/// Returns the name without what names of jobs may not have: commas, control characters, blanks at
/// both ends.
pub(crate) fn valid(name: &str) -> String {
    let allowed = |c: char| if c == ',' || c.is_control() { '_' } else { c };
    let name: String = name.chars().map(allowed).collect();
    let mut end = name.len().min(MAX_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].trim().to_owned()
}

/// Returns the profile for the definitions of a user and a database. A rule for both takes
/// precedence over a rule for the database, and that over a rule for the user.
pub(crate) fn profile<'a>(
    rules: &'a [RunAs],
    user: Option<&str>,
    database: Option<&str>,
) -> Option<&'a str> {
    let applies = |rule: &&RunAs| {
        let same = |wanted: &Option<String>, it: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| it == Some(wanted))
        };
        same(&rule.user, user) && same(&rule.database, database)
    };
    let rank = |rule: &&RunAs| (rule.database.is_some(), rule.user.is_some());
    rules.iter().filter(applies).max_by_key(rank).map(|rule| rule.profile.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_and_unique() {
        let wanted = ["a", "A", "b, c", "", "b_ c", "a_1", "x"];
        let mut names = Names::new("p/", wanted.iter().copied());
        let ids = ["1", "2", "3", "4", "5", "6", "7"];
        let chosen: Vec<_> =
            wanted.iter().zip(ids).map(|(name, id)| names.choose(name, id)).collect();
        assert_eq!(chosen, ["p/a_1_", "p/A_2", "p/b_ c_3", "p/_4", "p/b_ c_5", "p/a_1", "p/x"]);
        assert!(valid(&"ä".repeat(1000)).len() <= MAX_BYTES);
    }

    #[test]
    fn the_most_specific_rule_applies() {
        let rules: Vec<RunAs> =
            ["u=user", "@d=database", "u@d=both"].iter().map(|it| it.parse().unwrap()).collect();
        let find = |user, database| profile(&rules, user, database);
        assert_eq!(find(Some("u"), Some("d")), Some("both"));
        assert_eq!(find(Some("x"), Some("d")), Some("database"));
        assert_eq!(find(Some("u"), Some("x")), Some("user"));
        assert_eq!(find(None, None), None);
    }
}
