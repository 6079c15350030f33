//! Reference of the HTTP API, from the OpenAPI document that the console serves.

use serde_json::Value;

use super::{GENERATED, markdown_cell};
use crate::harness::Database;
use crate::harness::console::Console;

const INTRODUCTION: &str = "
The console (`pgmill console`, `worker --console`) serves this API. Its complete description, with the types of all
answers and errors, is at `/api/v1/openapi.json`. [The console](../console.md) describes tokens and users.
";

/// Returns the page.
pub(super) async fn page(database: &Database) -> String {
    let console = Console::start(database, &[]).await;
    let answer = console.get("/api/v1/openapi.json").await;
    let document: Value = serde_json::from_str(&answer.body).unwrap();
    let about = document["info"]["description"].as_str().unwrap();
    let mut page = format!("{GENERATED}\n# HTTP API\n{INTRODUCTION}\n{about}\n");
    for (method, heading) in [("get", "Queries"), ("post", "Actions")] {
        page += &format!("\n## {heading}\n\n| path | meaning | parameters |\n|---|---|---|\n");
        let paths = document["paths"].as_object().unwrap();
        for (path, operation) in paths.iter().filter_map(|(path, it)| Some((path, it.get(method)?)))
        {
            let text =
                |key: &str| operation[key].as_str().unwrap_or_default().trim_end_matches('.');
            let mut meaning = vec![text("summary"), text("description")];
            meaning.retain(|text| !text.is_empty());
            let (meaning, parameters) =
                (markdown_cell(&meaning.join(". ")), parameters(operation, &document));
            page += &format!("| `{path}` | {meaning} | {parameters} |\n");
        }
    }
    page
}

/// Returns the parameters of the path and the query, and the fields of the body.
fn parameters(operation: &Value, document: &Value) -> String {
    let listed = operation["parameters"].as_array().into_iter().flatten();
    let listed = listed.filter(|it| it["in"] != "header").map(|it| it["name"].as_str().unwrap());
    let mut schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    if let Some(reference) = schema["$ref"].as_str() {
        schema = document.pointer(reference.trim_start_matches('#')).unwrap();
    }
    let fields = schema["properties"].as_object().into_iter().flat_map(|it| it.keys());
    let names = listed.chain(fields.map(String::as_str)).map(|name| format!("`{name}`"));
    names.collect::<Vec<_>>().join(", ")
}
