//! The routes of the console, read in its source: one that is new is in every test of them at once.

use crate::tidy::files;

/// One path of the router.
#[derive(Debug)]
pub(crate) struct Route {
    /// With its parameters: `/tasks/{id}/cancel`.
    pub(crate) path: String,
    pub(crate) get: bool,
    pub(crate) post: bool,
}

/// Every `.route("…", …)` of the console but those of the API, which `openapi.json` describes.
pub(crate) fn routes() -> Vec<Route> {
    let mut found = Vec::new();
    for (_, text) in files(&["console/src"], &[".rs"]) {
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
            assert!(get || post, "{path} answers nothing that is known here: {handlers}");
            found.push(Route { path: path.to_owned(), get, post });
        }
    }
    assert!(found.iter().filter(|it| it.get).count() > 20, "the scan finds {found:?}");
    assert!(found.iter().filter(|it| it.post).count() > 15, "the scan finds {found:?}");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Paths that something is done by, but for signing in and out.
pub(crate) fn post_routes() -> Vec<String> {
    let acts = routes().into_iter().filter(|it| it.post).map(|it| it.path);
    acts.filter(|path| path != "/login" && path != "/logout").collect()
}

/// The path with values in place of its parameters.
pub(crate) fn filled(path: &str, values: &[(&str, &str)]) -> String {
    values
        .iter()
        .fold(path.to_owned(), |path, (name, value)| path.replace(&format!("{{{name}}}"), value))
}
