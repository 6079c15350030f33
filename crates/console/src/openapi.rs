//! OpenAPI description of the JSON API, served at `/api/v1/openapi.json`. Paths and types come from
//! the handlers; this module adds what all of them have in common, such as errors.

use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

/// Pattern of all PostgreSQL text values: no NUL character.
const NO_NUL: &str = "^[^\\u0000]*$";

/// Errors of every path.
const ERRORS: [(&str, &str); 8] = [
    ("400", "Invalid parameter"),
    ("401", "Token missing or invalid"),
    ("403", "Missing privilege, or host name not allowed"),
    ("404", "Not found"),
    ("422", "Rejected by the database"),
    ("429", "Too many wrong tokens"),
    ("503", "Database unavailable, a lock not granted in time, or too many large requests"),
    ("504", "Time limit exceeded"),
];

/// Returns the OpenAPI document.
pub(crate) fn document(api: &OpenApi) -> Value {
    let api = json!(api);
    let (mut paths, mut schemas) = (api["paths"].clone(), api["components"]["schemas"].clone());
    schemas["Error"] = json!({
        "type": "object",
        "properties": { "error": { "type": "string" }, "hint": { "type": ["string", "null"] } },
    });
    let all = schemas.clone();
    let types = schemas.as_object_mut().into_iter().flat_map(Map::values_mut);
    for schema in types.filter_map(Value::as_object_mut) {
        // Types of requests have optional fields; utoipa describes them completely.
        if schema.get("additionalProperties") == Some(&json!(false)) {
            complete_text(schema);
        } else {
            complete_schema(schema, &all);
        }
    }
    let methods = paths.as_object_mut().into_iter().flat_map(Map::values_mut);
    for (method, operation) in methods.filter_map(Value::as_object_mut).flatten() {
        complete_operation(operation);
        if method == "post" {
            complete_change(operation);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "pgmill console",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Times are RFC 3339 in UTC; durations are in seconds. A POST request is one \
                transaction: after an error it has changed nothing, unless the status is 500. With a \
                header Idempotency-Key, it can be repeated within a day: the repeated request returns \
                the first result.",
        },
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas,
        },
        // A console without tokens requires no authentication.
        "security": [{ "token": [] }, {}],
        "paths": paths,
    })
}

/// Describes a response type as an object that has all its fields and no others. The fields of
/// types that are flattened into the type are included.
fn complete_schema(schema: &mut Map<String, Value>, all: &Value) {
    let properties = properties(&Value::Object(schema.clone()), all);
    schema.remove("allOf");
    if !properties.is_empty() {
        schema.insert("type".to_owned(), json!("object"));
        schema.insert("required".to_owned(), properties.keys().cloned().collect());
        schema.insert("additionalProperties".to_owned(), json!(false));
        schema.insert("properties".to_owned(), Value::Object(properties));
    }
}

/// Adds the pattern of text to the fields of a request.
fn complete_text(schema: &mut Map<String, Value>) {
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for field in fields.into_iter().flat_map(Map::values_mut) {
        let field = if field["items"].is_null() { field } else { &mut field["items"] };
        let kind = &field["type"];
        if (*kind == "string" || *kind == json!(["string", "null"])) && field["format"].is_null() {
            field["pattern"] = json!(NO_NUL);
        }
    }
}

/// Adds the header with the idempotency key, and the errors of a POST request.
fn complete_change(operation: &mut Value) {
    if let Some(parameters) = operation["parameters"].as_array_mut() {
        parameters.push(json!({
            "name": "Idempotency-Key",
            "in": "header",
            "required": false,
            "description": "Identifies the request when it is repeated",
            "schema": { "type": "string", "pattern": "^[!-~]{1,255}$" },
        }));
    }
    operation["requestBody"]["required"] = json!(true);
    for (status, description) in [
        ("413", "Body too large"),
        ("415", "Body is not JSON"),
        ("500", "Connection lost during the commit: it is not known whether the change was made"),
    ] {
        operation["responses"][status] = error_response(description);
    }
}

fn error_response(description: &str) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Error" });
    json!({ "description": description, "content": { "application/json": { "schema": schema } } })
}

/// Returns the fields of a type, with those of the types flattened into it.
fn properties(schema: &Value, all: &Value) -> Map<String, Value> {
    let name = schema["$ref"].as_str().and_then(|it| it.strip_prefix("#/components/schemas/"));
    let schema = name.map_or(schema, |name| &all[name]);
    let parts = schema["allOf"].as_array().into_iter().flatten();
    let own = schema["properties"].as_object().cloned().unwrap_or_default();
    parts.flat_map(|part| properties(part, all)).chain(own).collect()
}

/// Adds the bounds and patterns of parameters, and the errors that every path has.
fn complete_operation(operation: &mut Value) {
    if operation["parameters"].is_null() {
        operation["parameters"] = json!([]);
    }
    for parameter in operation["parameters"].as_array_mut().into_iter().flatten() {
        let of_path = parameter["in"] == "path";
        let schema = &mut parameter["schema"];
        if of_path {
            schema["maximum"] = json!(i64::MAX);
        } else if schema["type"] == "string"
            && schema["pattern"].is_null()
            && schema["enum"].is_null()
        {
            schema["pattern"] = json!(NO_NUL);
        }
    }
    operation["responses"]["200"]["description"] = json!("Success");
    for (status, description) in ERRORS {
        operation["responses"][status] = error_response(description);
    }
}
