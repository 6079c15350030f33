//! Strict parser for Prometheus's text format 0.0.4 (specified in "Exposition formats" of its
//! documentation): deviations that a lenient parser accepts fail the test.

use std::collections::{BTreeMap, BTreeSet};

/// One metric with its samples.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) samples: Vec<Sample>,
}

/// One line.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// Every metric by name.
pub(crate) type Families = BTreeMap<String, Family>;

/// Returns every metric by name. Panics on any violation of the format.
pub(crate) fn parse(text: &str) -> Families {
    assert!(text.ends_with('\n'), "the last line ends with a line feed");
    let mut families = BTreeMap::new();
    let mut current: Option<String> = None;
    let mut helped: Option<String> = None;
    let mut seen = BTreeSet::new();
    for line in text.lines() {
        assert!(
            seen.insert(line.rsplit_once(' ').map_or(line, |(series, _)| series)),
            "duplicate: {line}"
        );
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, doc) = help.split_once(' ').unwrap_or((help, ""));
            assert!(!doc.is_empty(), "no help: {line}");
            helped = Some(name.to_owned());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(helped.as_deref(), Some(name), "HELP precedes TYPE");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            let family = Family { kind: kind.to_owned(), samples: Vec::new() };
            assert!(families.insert(name.to_owned(), family).is_none(), "two families of {name}");
            current = Some(name.to_owned());
        } else {
            let sample = sample(line);
            let name = current.as_ref().unwrap();
            let family = families.get_mut(name).unwrap();
            let suffix = sample.name.strip_prefix(name.as_str()).unwrap_or("?");
            let fits: &[&str] =
                if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(fits.contains(&suffix), "{line} belongs to {name}");
            assert!(family.kind != "counter" || sample.value >= 0.0, "{line}");
            family.samples.push(sample);
        }
    }
    for (name, family) in &families {
        assert!(!family.samples.is_empty(), "{name} has no sample");
        if family.kind == "histogram" {
            check_histogram(name, family);
        }
    }
    families
}

/// Returns the sum of the samples of this name with these labels.
pub(crate) fn sum(families: &Families, name: &str, labels: &[(&str, &str)]) -> f64 {
    let family = name.strip_suffix("_count").filter(|name| families.contains_key(*name));
    let Some(family) = families.get(family.unwrap_or(name)) else { return 0.0 };
    let fits = |have: &BTreeMap<String, String>| {
        labels.iter().all(|(key, value)| have.get(*key).is_some_and(|have| have == value))
    };
    let samples =
        family.samples.iter().filter(|sample| sample.name == name && fits(&sample.labels));
    samples.map(|sample| sample.value).sum()
}

fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let value = match value {
        "+Inf" => f64::INFINITY,
        _ => value.parse().unwrap_or_else(|_| panic!("not a number: {line}")),
    };
    let (name, labels) = series.split_once('{').map_or((series, ""), |(name, rest)| {
        (name, rest.strip_suffix('}').unwrap_or_else(|| panic!("missing closing brace: {line}")))
    });
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    assert!(!name.is_empty() && name.chars().all(word), "invalid name: {line}");
    let mut pairs = BTreeMap::new();
    let mut rest = labels;
    while !rest.is_empty() {
        let (key, quoted) =
            rest.split_once("=\"").unwrap_or_else(|| panic!("invalid label: {line}"));
        assert!(key.chars().all(word), "invalid label: {line}");
        let end = closing_quote(quoted).unwrap_or_else(|| panic!("missing closing quote: {line}"));
        assert!(pairs.insert(key.to_owned(), quoted[..end].to_owned()).is_none(), "{line}");
        rest = &quoted[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    Sample { name: name.to_owned(), labels: pairs, value }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let closes = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        closes.then_some(at)
    })
}

/// Samples of one histogram with one set of labels: bounds with their counts, the count, and
/// whether a sum exists.
#[derive(Default)]
struct Histogram {
    buckets: Vec<(f64, f64)>,
    count: Option<f64>,
    sum: bool,
}

/// Asserts that buckets increase, end with +Inf, and match the count.
fn check_histogram(name: &str, family: &Family) {
    let mut series: BTreeMap<_, Histogram> = BTreeMap::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        let le = labels.remove("le");
        let entry = series.entry(labels).or_default();
        if sample.name.ends_with("_bucket") {
            let le = le.unwrap();
            let bound = if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap() };
            entry.buckets.push((bound, sample.value));
        } else if sample.name.ends_with("_count") {
            entry.count = Some(sample.value);
        } else {
            entry.sum = true;
        }
    }
    for (labels, Histogram { buckets, count, sum }) in series {
        let grows = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        assert!(grows, "{name} {labels:?}: {buckets:?}");
        let (last, all) = buckets.last().copied().unwrap();
        assert!(last.is_infinite() && Some(all) == count && sum, "{name} {labels:?}");
    }
}
