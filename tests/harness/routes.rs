//! The console's routes, parsed from its source, so that every test of all routes includes new
//! ones.

use crate::project::tidy::files;

/// One path of the router.
#[derive(Debug)]
pub(crate) struct Route {
    /// Path with parameters: `/tasks/{id}/cancel`.
    pub(crate) path: String,
    pub(crate) get: bool,
    pub(crate) post: bool,
}

/// Returns every `.route("…", …)` of the console except those of the API, which `openapi.json`
/// describes.
pub(crate) fn routes() -> Vec<Route> {
    let mut found = Vec::new();
    for (_, text) in files(&["crates/console/src"], &[".rs"]) {
        for rest in text.split(".route(\"").skip(1) {
            let (path, rest) = rest.split_once('"').unwrap();
            let mut open = 1;
            let handlers: String = rest
                .chars()
                .take_while(|c| {
                    open += i32::from(*c == '(') - i32::from(*c == ')');
                    open > 0
                })
                .collect();
            let get = handlers.contains("get(");
            let post = handlers.contains("post(");
            assert!(get || post, "{path} has no known handler: {handlers}");
            found.push(Route { path: path.to_owned(), get, post });
        }
    }
    assert!(found.iter().filter(|it| it.get).count() > 20, "the scan finds {found:?}");
    assert!(found.iter().filter(|it| it.post).count() > 15, "the scan finds {found:?}");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Returns the paths of actions, except signing in and out.
pub(crate) fn post_routes() -> Vec<String> {
    let acts = routes().into_iter().filter(|it| it.post).map(|it| it.path);
    acts.filter(|path| path != "/login" && path != "/logout").collect()
}

/// Replaces the parameters of the path with values.
pub(crate) fn filled(path: &str, values: &[(&str, &str)]) -> String {
    values
        .iter()
        .fold(path.to_owned(), |path, (name, value)| path.replace(&format!("{{{name}}}"), value))
}
