//! The report of a load test, which draws its plots in the browser.

use std::process::Command;

use serde_json::json;

use super::{browser, root};

#[test]
#[ignore = "needs a browser: make browser"]
fn every_plot_of_the_load_test_report_is_drawn() {
    let Some(folder) = browser() else { return };
    let (results, page) =
        (root().join("loadtest/results/drain-latency.json"), folder.join("report.html"));
    let report = Command::new(env!("CARGO_BIN_EXE_test-loadtest"))
        .arg("report")
        .arg(results)
        .arg("-o")
        .arg(&page)
        .output()
        .unwrap();
    assert!(report.status.success(), "{report:?}");
    let config = json!({ "parts": ["report"], "url": format!("file://{}", page.display()) });
    let script =
        Command::new("node").arg(folder.join("main.mjs")).arg(config.to_string()).output().unwrap();
    print!("{}", String::from_utf8_lossy(&script.stdout));
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stderr));
}
