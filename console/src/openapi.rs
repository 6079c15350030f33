//! OpenAPI description of the JSON API, served at `/api/v1/openapi.json`.

mod schemas;

use serde_json::{Map, Value, json};

/// An operation of the API.
pub struct Operation {
    /// Path below `/api/v1`.
    pub path: &'static str,
    /// One-line description.
    pub summary: &'static str,
    /// Query parameters: name, description.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Fields of every response: name and type, in the notation of [`schemas::SCHEMAS`].
    pub response_fields: &'static [(&'static str, &'static str)],
}

const NAME: (&str, &str) = ("name", "name of the object");
const AFTER: (&str, &str) = ("after", "`next` of the previous page");

/// Fields of a graph.
const GRAPH_FIELDS: &[(&str, &str)] = &[
    ("nodes", "[GraphNode]"),
    ("edges", "[GraphEdge]"),
    ("left_out", "integer"),
    ("too_many_edges", "boolean"),
];

const QUEUE: (&str, &str) = ("queue", "only this queue");

/// All operations; the router is built from this list.
pub const PATHS: &[Operation] = &[
    Operation {
        path: "/overview",
        summary: "Problems, queues, readers, and the last hour",
        parameters: &[],
        response_fields: &[
            ("problems", "[Problem]"),
            ("queues", "[Queue]"),
            ("hour", "Hour"),
            ("readers", "integer"),
            ("busy_readers", "integer"),
            ("workers_alive", "integer"),
            ("minutes_read", "integer"),
        ],
    },
    Operation {
        path: "/tasks",
        summary: "Tasks that match a filter, newest first, 50 per page",
        parameters: &[("q", "filter, such as queue:etl state:failed since:1h"), AFTER],
        response_fields: &[
            ("tasks", "[FoundTask]"),
            ("next", "string|null"),
            ("searched_back_to", "time|null"),
        ],
    },
    Operation {
        path: "/tasks/{id}",
        summary: "One task with its attempts, blockers, duration history and plan",
        parameters: &[],
        response_fields: &[
            ("task", "Task"),
            ("why", "string|null"),
            ("running", "Running|null"),
            ("blockers", "[Blocker]"),
            ("attempts", "[Attempt]"),
            ("duration_history", "DurationHistory|null"),
            ("plan", "Plan|null"),
        ],
    },
    Operation {
        path: "/failures",
        summary: "Failures by cause, most frequent first",
        parameters: &[
            ("since", "time range up to now: 90s, 15m, 2h, 3d; default 1h"),
            ("queue", "only causes that occur in this queue"),
        ],
        response_fields: &[("groups", "[FailureGroup]")],
    },
    Operation {
        path: "/workers",
        summary: "Workers and their running tasks",
        parameters: &[],
        response_fields: &[("workers", "[Worker]")],
    },
    Operation {
        path: "/queues",
        summary: "Queues; a count with `more` is a lower bound",
        parameters: &[],
        response_fields: &[("queues", "[Queue]")],
    },
    Operation {
        path: "/priorities",
        summary: "Priorities and their weights",
        parameters: &[],
        response_fields: &[("priorities", "[Priority]"), ("weights", "[Weight]")],
    },
    Operation {
        path: "/groups",
        summary: "Groups; counts stop at 10,000",
        parameters: &[],
        response_fields: &[("groups", "[Group]")],
    },
    Operation {
        path: "/throughput",
        summary: "Finished attempts, wait times, durations and waiting tasks of each minute of the last \
                  hours; null where a value is not known",
        parameters: &[QUEUE, ("hours", "number of hours, from 1 to 6; default 1")],
        response_fields: &[
            ("at", "[integer]"),
            ("succeeded", "[integer|null]"),
            ("failed", "[integer|null]"),
            ("cancelled", "[integer|null]"),
            ("wait_p50_seconds", "[number|null]"),
            ("wait_p95_seconds", "[number|null]"),
            ("duration_p50_seconds", "[number|null]"),
            ("duration_p95_seconds", "[number|null]"),
            ("waiting", "[integer|null]"),
            ("waiting_at_least", "[boolean]"),
            ("minutes_read", "integer"),
        ],
    },
    Operation {
        path: "/audit",
        summary: "Audit log, newest first, 50 per page",
        parameters: &[
            ("subject", "subject of the action, such as task 42"),
            ("login", "login or actor"),
            ("action", "name of the function"),
            ("since", "time range up to now: 90s, 15m, 2h, 3d"),
            ("before", "`next` of the previous page"),
        ],
        response_fields: &[("acts", "[Act]"), ("next", "integer|null")],
    },
    Operation {
        path: "/database",
        summary: "The server, checks of pgmill doctor, locks, connections, tables, retention",
        parameters: &[],
        response_fields: &[
            ("server_version", "string"),
            ("connections_allowed", "integer"),
            ("connections_open", "integer"),
            ("checks", "[Check]"),
            ("connections", "[Connections]"),
            ("lock_waits", "[LockWait]"),
            ("horizon", "[Holder]"),
            ("schema", "Storage|null"),
        ],
    },
    Operation {
        path: "/runs",
        summary: "Runs, newest first, 50 per page; a page searches up to 10,000 runs",
        parameters: &[
            ("state", "running, succeeded, failed or cancelled"),
            ("job", "runs that include this job"),
            ("schedule", "runs fired by this schedule"),
            AFTER,
        ],
        response_fields: &[("runs", "[ListedRun]"), ("next", "integer|null")],
    },
    Operation {
        path: "/runs/{id}",
        summary: "One run with up to 300 of its tasks; of a larger run, running, failed and \
                  upstream_failed tasks come first",
        parameters: &[],
        response_fields: &[
            ("run", "Run"),
            ("tasks", "[RunTask]"),
            ("edges", "[RunEdge]"),
            ("left_out", "integer"),
            ("too_many_edges", "boolean"),
            ("critical_path", "CriticalPath|null"),
        ],
    },
    Operation {
        path: "/runs/{id}/graph",
        summary: "Graph of a run",
        parameters: &[],
        response_fields: GRAPH_FIELDS,
    },
    Operation {
        path: "/schedules",
        summary: "Schedules by name, each with its recent runs, 100 per page",
        parameters: &[AFTER],
        response_fields: &[
            ("schedules", "[Schedule]"),
            ("declaration_errors", "[DeclarationError]"),
            ("next", "string|null"),
        ],
    },
    Operation {
        path: "/schedules/detail",
        summary: "One schedule with its next fires, runs and log",
        parameters: &[NAME],
        response_fields: &[
            ("schedule", "Schedule"),
            ("fires", "[Fire]"),
            ("history", "[Fired]"),
            ("log", "[Logged]"),
        ],
    },
    Operation {
        path: "/jobs",
        summary: "Jobs by name, each with its newest run, 100 per page",
        parameters: &[AFTER],
        response_fields: &[("jobs", "[ListedJob]"), ("next", "string|null")],
    },
    Operation {
        path: "/jobs/detail",
        summary: "One job with up to 300 of its tasks and the dependencies between them",
        parameters: &[NAME],
        response_fields: &[("job", "Job"), ("edges", "[Link]")],
    },
    Operation {
        path: "/jobs/graph",
        summary: "Graph of a job",
        parameters: &[NAME],
        response_fields: GRAPH_FIELDS,
    },
    Operation {
        path: "/lineage",
        summary: "Upstream and downstream tasks of a task, across all jobs",
        parameters: &[NAME],
        response_fields: &[("task", "string"), ("tasks", "[string]"), ("edges", "[Link]")],
    },
    Operation {
        path: "/lineage/graph",
        summary: "Graph of the upstream and downstream tasks of a task",
        parameters: &[NAME],
        response_fields: GRAPH_FIELDS,
    },
];

/// Returns the OpenAPI document.
pub(crate) fn document() -> Value {
    let paths: Map<String, Value> =
        PATHS.iter().map(|it| (format!("/api/v1{}", it.path), operation(it))).collect();
    let schemas: Map<String, Value> = schemas::SCHEMAS
        .iter()
        .map(|(name, fields)| ((*name).to_owned(), component(fields)))
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "pgmill console",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Read-only. Times are RFC 3339 in UTC; durations are in seconds.",
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

fn error_response(description: &str) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Error" });
    json!({ "description": description, "content": { "application/json": { "schema": schema } } })
}

/// Returns the JSON schema of a type.
fn schema(kind: &str) -> Value {
    if let Some(kind) = kind.strip_suffix("|null") {
        return json!({ "anyOf": [schema(kind), { "type": "null" }] });
    }
    if let Some(of) = kind.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        return json!({ "type": "array", "items": schema(of) });
    }
    match kind {
        "any" => json!({}),
        "time" => json!({ "type": "string", "format": "date-time" }),
        "uuid" => json!({ "type": "string", "format": "uuid" }),
        // bigint in the database.
        "integer" => json!({ "type": "integer", "format": "int64" }),
        name if name.starts_with(char::is_uppercase) => {
            json!({ "$ref": format!("#/components/schemas/{name}") })
        }
        kind => json!({ "type": kind }),
    }
}

fn object<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> Value {
    let properties: Map<String, Value> =
        fields.map(|(name, kind)| (name.to_owned(), schema(kind))).collect();
    let required: Vec<&String> = properties.keys().collect();
    json!({
        "type": "object",
        "required": required,
        "additionalProperties": false,
        "properties": properties,
    })
}

fn component(fields: &str) -> Value {
    object(fields.split_whitespace().filter_map(|field| field.split_once(':')))
}

/// Returns the schema of a parameter. Filters and cursors of filtered lists, which have their own
/// syntax, are plain strings.
fn parameter(path: &str, name: &str) -> Value {
    match name {
        "id" => json!({ "type": "integer", "format": "int64", "minimum": 1, "maximum": i64::MAX }),
        "before" => json!({ "type": "integer", "format": "int64" }),
        "after" if path == "/runs" => json!({ "type": "integer", "format": "int64" }),
        "hours" => json!({ "type": "integer", "minimum": 1, "maximum": 6 }),
        "since" => json!({ "type": "string", "pattern": "^([0-9]{1,4}[smhd])?$" }),
        "state" => {
            json!({ "type": "string", "enum": ["running", "succeeded", "failed", "cancelled"] })
        }
        "name" => json!({
            "type": "string", "minLength": 1, "pattern": NO_NUL, "examples": ["nightly"],
        }),
        _ => json!({ "type": "string", "pattern": NO_NUL }),
    }
}

/// Pattern of all PostgreSQL text values: no NUL character.
const NO_NUL: &str = "^[^\\u0000]*$";

fn operation(it: &Operation) -> Value {
    let query = it.parameters.iter().map(|(name, meaning)| {
        let required = *name == NAME.0;
        json!({
            "name": name, "in": "query", "required": required,
            "description": meaning, "schema": parameter(it.path, name),
        })
    });
    let id = parameter(it.path, "id");
    let of_path = it
        .path
        .contains("{id}")
        .then(|| json!({ "name": "id", "in": "path", "required": true, "schema": id }));
    let parameters: Vec<Value> = of_path.into_iter().chain(query).collect();
    let schema = object(it.response_fields.iter().copied());
    json!({ "get": {
        "summary": it.summary,
        "parameters": parameters,
        "responses": {
            "200": { "description": "Success", "content": { "application/json": { "schema": schema } } },
            "400": error_response("Invalid parameter"),
            "401": error_response("Token missing or invalid"),
            "403": error_response("Missing privilege, or host name not allowed"),
            "404": error_response("Not found"),
            "422": error_response("Rejected by the database"),
            "503": error_response("Database unavailable"),
            "504": error_response("Time limit exceeded"),
        },
    } })
}
