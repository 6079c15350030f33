//! Parts and links of the dashboards. `tests/operation/monitoring.rs` tests that every panel shows data.

use std::collections::BTreeSet;

use deploy::dashboard::dashboards;
use serde_json::Value;

#[test]
fn every_panel_says_what_it_shows() {
    let mut uids = BTreeSet::new();
    for dashboard in dashboards().unwrap() {
        let file = &dashboard.file;
        assert!(!dashboard.uid.is_empty() && uids.insert(dashboard.uid.clone()), "{file}: uid");
        // An id belongs to one Grafana.
        assert!(dashboard.json["id"].is_null(), "{file}: id");
        works_in_any_grafana(&dashboard.json, file);
        let panels = dashboard.json["panels"].as_array().unwrap();
        let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_i64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len(), "{file}: two panels have the same id");
        for panel in &dashboard.panels {
            let texts = [&panel.title, &panel.description, &panel.unit];
            let complete = !panel.targets.is_empty() && texts.iter().all(|text| !text.is_empty());
            assert!(complete, "{file}: title, description, unit or expression of {}", panel.id);
        }
    }
}

/// Checks that every data source is the variable.
fn works_in_any_grafana(json: &Value, file: &str) {
    if let Some(source) = json.get("datasource") {
        assert_eq!(source["uid"], "${datasource}", "{file}");
    }
    let fields = json.as_object().into_iter().flat_map(|fields| fields.values());
    for part in fields.chain(json.as_array().into_iter().flatten()) {
        works_in_any_grafana(part, file);
    }
}

#[test]
fn links_lead_to_dashboards_and_pages() {
    let dashboards = dashboards().unwrap();
    for dashboard in &dashboards {
        for link in dashboard.json["links"].as_array().into_iter().flatten() {
            let url = link["url"].as_str().unwrap();
            let known = |uid: &str| url.starts_with(&format!("/d/{uid}"));
            assert!(dashboards.iter().any(|it| known(&it.uid)), "{}: {url}", dashboard.file);
        }
        for panel in &dashboard.panels {
            let words = panel.description.split_whitespace();
            for page in words.filter(|word| word.starts_with("docs/")) {
                let page = page.trim_end_matches('.');
                assert!(deploy::root().join(page).is_file(), "{}: {page}", dashboard.file);
            }
        }
    }
}
