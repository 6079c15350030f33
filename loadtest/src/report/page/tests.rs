use super::*;
use crate::report::sample_report;

/// Returns the sample report and an earlier run of it.
fn two_runs() -> [Results; 2] {
    let latest = sample_report::results();
    let mut earlier = latest.clone();
    earlier.started_at = "2026-11-14T09:00:00Z".into();
    for case in &mut earlier.scenarios[0].cases[1..2] {
        case.rounds.iter_mut().for_each(|value| *value *= 0.8);
    }
    earlier.scenarios[4].cases[4].rounds.iter_mut().for_each(|value| *value *= 1.3);
    [latest, earlier]
}

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
    for page in [page(&[sample_report::results()]), page(&two_runs()), page(&[])] {
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
    let page = page(&two_runs());
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
    let page = super::page(&[hostile]);
    assert_well_formed(&page);
    assert_eq!(page.matches("<script").count(), 1);
}

#[test]
fn everything_measured_is_on_the_page() {
    let results = sample_report::results();
    let page = page(std::slice::from_ref(&results));
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
fn several_runs_show_the_way_to_the_latest() {
    let page = page(&two_runs());
    assert!(page.contains("✗ 1 worse") && page.contains("1 better"), "no comparison");
    assert!(page.contains("<details class=\"earlier\"><summary>Run of 2026-11-14 09:00 UTC"));
    assert!(page.contains("{&quot;places&quot;:[&quot;11-14&quot;,&quot;11-21&quot;]}"));
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
    let page = page(&[results.clone(), results]);
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

#[test]
#[ignore = "writes the sample report as pages for visual inspection"]
fn sample_pages() {
    let folder = std::env::temp_dir();
    fs::write(folder.join("loadtest-sample.html"), page(&[sample_report::results()])).unwrap();
    fs::write(folder.join("loadtest-sample-2.html"), page(&two_runs())).unwrap();
    println!("{}\n{}", folder.display(), table::text(&sample_report::results()));
    println!("\n{}", table::markdown(&sample_report::results()));
    let [latest, earlier] = two_runs();
    println!("\n{}", crate::report::compare::compare(&earlier, &latest).text());
}
