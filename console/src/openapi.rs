//! What the JSON looks like, for programs: `/api/v1/openapi.json`.

mod schemas;

use serde_json::{Map, Value, json};

/// A path of the API.
pub struct Operation {
    /// Below `/api/v1`.
    pub path: &'static str,
    /// What it answers.
    pub summary: &'static str,
    /// Parameters of the query: name, meaning.
    pub parameters: &'static [(&'static str, &'static str)],
    /// What an answer has in any case: name and kind, as in [`schemas::SCHEMAS`].
    pub response_fields: &'static [(&'static str, &'static str)],
}

const NAME: (&str, &str) = ("name", "of this one");
const AFTER: (&str, &str) = ("after", "`next` of the page before");

/// What a picture is drawn from.
const GRAPH_FIELDS: &[(&str, &str)] = &[
    ("nodes", "[GraphNode]"),
    ("edges", "[GraphEdge]"),
    ("left_out", "integer"),
    ("too_many_edges", "boolean"),
];

const QUEUE: (&str, &str) = ("queue", "of this queue only");

/// Every path; the router is made of it.
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
        summary: "Tasks that match a filter, the newest first, 50 at a time",
        parameters: &[
            ("q", "the filter, as in queue:etl state:failed since:1h"),
            ("after", "`next` of the page before"),
        ],
        response_fields: &[
            ("tasks", "[FoundTask]"),
            ("next", "string|null"),
            ("searched_back_to", "time|null"),
        ],
    },
    Operation {
        path: "/tasks/{id}",
        summary: "Everything about one task",
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
        summary: "Failures by cause, the most frequent first",
        parameters: &[
            ("since", "within this time: 90s, 15m, 2h, 3d; an hour if it is left out"),
            ("queue", "causes that this queue has a part in"),
        ],
        response_fields: &[("groups", "[FailureGroup]")],
    },
    Operation {
        path: "/workers",
        summary: "Workers and what they run",
        parameters: &[],
        response_fields: &[("workers", "[Worker]")],
    },
    Operation {
        path: "/queues",
        summary: "Queues; where `more` is true, the counting ended",
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
        summary: "Groups; counts end at 10,000",
        parameters: &[],
        response_fields: &[("groups", "[Group]")],
    },
    Operation {
        path: "/throughput",
        summary: "Ends, wait and run times, and tasks waiting at its end, of each minute of the last hours; null where nothing is known",
        parameters: &[QUEUE, ("hours", "so many, from 1 to 6; one if it is left out")],
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
        summary: "Who did what, the last first, 50 at a time",
        parameters: &[
            ("subject", "done to this, as in task 42"),
            ("login", "by this login, or in the name of this person"),
            ("action", "name of the function"),
            ("since", "within this time: 90s, 15m, 2h, 3d"),
            ("before", "`next` of the page before"),
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
        summary: "Runs, the newest first, 50 at a time, out of 10,000 that are looked at",
        parameters: &[
            ("state", "running, succeeded, failed or cancelled"),
            ("job", "of this job, maybe among others"),
            ("schedule", "fired by this schedule"),
            AFTER,
        ],
        response_fields: &[("runs", "[ListedRun]"), ("next", "integer|null")],
    },
    Operation {
        path: "/runs/{id}",
        summary: "One run with up to 300 of its tasks: of more, those that run, failed or cannot run first",
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
        summary: "The picture of a run",
        parameters: &[],
        response_fields: GRAPH_FIELDS,
    },
    Operation {
        path: "/schedules",
        summary: "Schedules by name, each with its last runs, 100 at a time",
        parameters: &[AFTER],
        response_fields: &[
            ("schedules", "[Schedule]"),
            ("declaration_errors", "[DeclarationError]"),
            ("next", "string|null"),
        ],
    },
    Operation {
        path: "/schedules/detail",
        summary: "One schedule: its next fires, the runs it started, what happened to it",
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
        summary: "Jobs by name, each with its newest run, 100 at a time",
        parameters: &[AFTER],
        response_fields: &[("jobs", "[ListedJob]"), ("next", "string|null")],
    },
    Operation {
        path: "/jobs/detail",
        summary: "One job with up to 300 of its tasks, and what waits for what among these",
        parameters: &[NAME],
        response_fields: &[("job", "Job"), ("edges", "[Link]")],
    },
    Operation {
        path: "/jobs/graph",
        summary: "The picture of a job",
        parameters: &[NAME],
        response_fields: GRAPH_FIELDS,
    },
    Operation {
        path: "/lineage",
        summary: "All that a task waits for, and all that waits for it, over all jobs",
        parameters: &[NAME],
        response_fields: &[("task", "string"), ("tasks", "[string]"), ("edges", "[Link]")],
    },
    Operation {
        path: "/lineage/graph",
        summary: "The picture of that",
        parameters: &[NAME],
        response_fields: GRAPH_FIELDS,
    },
];

/// The document.
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
            "description": "Reading only. Times are RFC 3339 in UTC, spans are seconds.",
        },
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas,
        },
        // A console without tokens asks for none.
        "security": [{ "token": [] }, {}],
        "paths": paths,
    })
}

fn error_response(why: &str) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Error" });
    json!({ "description": why, "content": { "application/json": { "schema": schema } } })
}

/// The schema of a kind.
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
        // As large as the database has them.
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

/// What a parameter may be. Of a filter and of the pages of a list by it, which have a language of their own, it
/// says that they are text.
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

/// Every text of PostgreSQL is like that.
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
            "200": { "description": "It", "content": { "application/json": { "schema": schema } } },
            "400": error_response("A parameter that cannot be read"),
            "401": error_response("No token"),
            "403": error_response("No right, or a name that this console is not known by"),
            "404": error_response("There is none"),
            "422": error_response("The database refuses it"),
            "503": error_response("No database"),
            "504": error_response("It took longer than it may"),
        },
    } })
}
