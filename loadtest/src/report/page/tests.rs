use super::*;
use crate::report::sample_report;

/// Void elements: no content and no end tag.
const VOID: &[&str] = &["meta", "link"];

/// Asserts that every element is closed properly and all text is escaped.
fn assert_well_formed(page: &str) {
    let body = page.strip_prefix("<!DOCTYPE html>").unwrap();
    let (head, rest) = body.split_once("<style>").unwrap();
    let (_, rest) = rest.split_once("</script>").unwrap();
    let mut open: Vec<&str> = Vec::new();
    for tag in [head, rest].iter().flat_map(|part| part.split('<').skip(1)) {
        let (tag, text) =
            tag.split_once('>').unwrap_or_else(|| panic!("tag without an end: {tag}"));
        assert!(!text.contains('>'), "unescaped character: {text}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "after {open:?}");
            continue;
        }
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
        let name = tag.split(' ').next().unwrap();
        assert!(tag.matches(" class=").count() <= 1, "{tag}");
        if !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn the_page_is_well_formed_and_needs_nothing_else() {
    for results in [sample_report::results(), Results::default()] {
        let page = page(&results);
        assert_well_formed(&page);
        assert_eq!(page.matches("<script").count(), 1);
        let own = page.replace(plot::SCRIPT, "");
        for reference in ["http:", "https:", "url(", "@import", "src=", "<img"] {
            assert!(!own.contains(reference), "{reference}");
        }
        let links = page.split("href=\"").skip(1);
        for link in links {
            let link = link.split('"').next().unwrap();
            let there = link.strip_prefix('#').map(|id| page.contains(&format!(" id=\"{id}\"")));
            assert!(there == Some(true) || link == "data:,", "{link}");
        }
    }
}

#[test]
fn names_are_text_wherever_they_stand() {
    let page = page(&sample_report::results());
    assert!(!page.contains("<b>hostile"), "a name became markup");
    assert!(page.contains("&lt;b&gt;hostile&lt;/b&gt; &amp; &quot;odd&quot;"));

    let mut hostile = sample_report::results();
    let evil = "\"></title></style><script>alert(1)</script>";
    for text in [&mut hostile.version, &mut hostile.command, &mut hostile.started_at] {
        *text = evil.into();
    }
    hostile.server.settings.push((evil.into(), evil.into()));
    for scenario in &mut hostile.scenarios {
        scenario.title = evil.into();
        scenario.notes.push(evil.into());
        for series in scenario.cases.iter_mut().flat_map(|case| &mut case.series) {
            (series.name, series.unit) = (evil.into(), evil.into());
        }
    }
    let page = super::page(&hostile);
    assert_well_formed(&page);
    assert_eq!(page.matches("<script").count(), 1);
}

#[test]
fn everything_measured_is_on_the_page() {
    let results = sample_report::results();
    let page = page(&results);
    let shown = |text: &str| page.contains(&html! { (text) }.into_string());
    for scenario in &results.scenarios {
        assert!(shown(&scenario.title) && shown(&scenario.name), "{}", scenario.name);
        for case in &scenario.cases {
            assert!(shown(&case.name), "{}", case.name);
        }
        for check in &scenario.checks {
            assert!(shown(&check.what) && shown(&check.detail), "{}", check.what);
        }
        assert!(scenario.notes.iter().all(|note| shown(note)), "{}", scenario.name);
    }
    let drawn = page.matches(" data-plot=").count();
    // Throughput of four scenarios, memory, dead rows, claim buffers, latency.
    assert_eq!((drawn, page.matches("<figure").count()), (8, 8));
    let goals = page.matches("<td class=\"bar\"").count();
    assert_eq!(goals, crate::report::goal_check::goals(&results).len());
}

#[test]
fn numbers_that_are_none_break_nothing() {
    let mut results = sample_report::results();
    for case in results.scenarios.iter_mut().flat_map(|scenario| &mut scenario.cases) {
        case.rounds = vec![0.0, f64::NAN, f64::INFINITY];
        for series in &mut case.series {
            series.points = vec![(0.0, f64::NAN), (f64::INFINITY, 1.0)];
        }
    }
    results.scenarios.push(crate::result::Scenario::default());
    let page = page(&results);
    assert_well_formed(&page);
    let page = page.replace(plot::SCRIPT, "");
    assert!(!page.contains("NaN") && !page.contains("inf%"));
}

#[test]
fn another_format_is_refused() {
    let text = serde_json::to_string(&sample_report::results()).unwrap();
    assert_eq!(parse(&text).unwrap(), sample_report::results());
    let error = parse(r#"{"format": 9, "what": []}"#).unwrap_err().to_string();
    assert_eq!(
        error,
        "unsupported format 9; this program reads format 1; use the version that wrote the file"
    );
    assert!(parse("[]").is_err());
}
