//! What the JSON looks like, for programs: `/api/v1/openapi.json`.

mod schemas;

use serde_json::{Map, Value, json};

/// A path of the API.
pub struct Described {
    /// Below `/api/v1`.
    pub path: &'static str,
    /// What it answers.
    pub summary: &'static str,
    /// Parameters of the query: name, meaning.
    pub parameters: &'static [(&'static str, &'static str)],
    /// What an answer has in any case: name and kind, as in [`schemas::SCHEMAS`].
    pub answer: &'static [(&'static str, &'static str)],
}

const NAME: (&str, &str) = ("name", "of this one");
const BEHIND: (&str, &str) = ("behind", "`next` of the page before");

/// What a picture is drawn from.
const DRAWING: &[(&str, &str)] = &[
    ("nodes", "[GraphNode]"),
    ("edges", "[GraphEdge]"),
    ("left_out", "integer"),
    ("too_many_edges", "boolean"),
];

const QUEUE: (&str, &str) = ("queue", "of this queue only");

/// Every path; the router is made of it.
pub const PATHS: &[Described] = &[
    Described {
        path: "/overview",
        summary: "Problems, queues, readers, and the last hour",
        parameters: &[],
        answer: &[
            ("problems", "[Problem]"),
            ("queues", "[Queue]"),
            ("hour", "Hour"),
            ("readers", "integer"),
            ("busy_readers", "integer"),
            ("workers_alive", "integer"),
            ("minutes_read", "integer"),
        ],
    },
    Described {
        path: "/tasks",
        summary: "Tasks that match a filter, the newest first, 50 at a time",
        parameters: &[
            ("q", "the filter, as in queue:etl state:failed since:1h"),
            ("behind", "`next` of the page before"),
        ],
        answer: &[
            ("tasks", "[FoundTask]"),
            ("next", "string|null"),
            ("looked_back_to", "time|null"),
        ],
    },
    Described {
        path: "/tasks/{id}",
        summary: "Everything about one task",
        parameters: &[],
        answer: &[
            ("task", "Task"),
            ("why", "string|null"),
            ("running", "Running|null"),
            ("blockers", "[Blocker]"),
            ("attempts", "[Attempt]"),
            ("usual", "Usual|null"),
            ("plan", "Plan|null"),
        ],
    },
    Described {
        path: "/failures",
        summary: "Failures by cause, the most frequent first",
        parameters: &[
            ("since", "within this time: 90s, 15m, 2h, 3d; an hour if it is left out"),
            ("queue", "causes that this queue has a part in"),
        ],
        answer: &[("groups", "[FailureGroup]")],
    },
    Described {
        path: "/workers",
        summary: "Workers and what they run",
        parameters: &[],
        answer: &[("workers", "[Worker]")],
    },
    Described {
        path: "/queues",
        summary: "Queues; where `more` is true, the counting ended",
        parameters: &[],
        answer: &[("queues", "[Queue]")],
    },
    Described {
        path: "/priorities",
        summary: "Priorities and their weights",
        parameters: &[],
        answer: &[("priorities", "[Priority]"), ("weights", "[Weight]")],
    },
    Described {
        path: "/groups",
        summary: "Groups; counts end at 10,000",
        parameters: &[],
        answer: &[("groups", "[Group]")],
    },
    Described {
        path: "/throughput",
        summary: "Ends, wait and run times, and tasks waiting at its end, of each minute of the last hours; null where nothing is known",
        parameters: &[QUEUE, ("hours", "so many, from 1 to 6; one if it is left out")],
        answer: &[
            ("at", "[integer]"),
            ("succeeded", "[integer|null]"),
            ("failed", "[integer|null]"),
            ("cancelled", "[integer|null]"),
            ("wait_p50_seconds", "[number|null]"),
            ("wait_p95_seconds", "[number|null]"),
            ("run_p50_seconds", "[number|null]"),
            ("run_p95_seconds", "[number|null]"),
            ("waiting", "[integer|null]"),
            ("waiting_at_least", "[boolean]"),
            ("minutes_read", "integer"),
        ],
    },
    Described {
        path: "/audit",
        summary: "Who did what, the last first, 50 at a time",
        parameters: &[
            ("subject", "done to this, as in task 42"),
            ("login", "by this login, or in the name of this person"),
            ("act", "name of the function"),
            ("since", "within this time: 90s, 15m, 2h, 3d"),
            ("before", "`next` of the page before"),
        ],
        answer: &[("acts", "[Act]"), ("next", "integer|null")],
    },
    Described {
        path: "/database",
        summary: "The server, checks of pgmill doctor, locks, connections, tables, retention",
        parameters: &[],
        answer: &[
            ("server_version", "string"),
            ("connections_allowed", "integer"),
            ("connections_open", "integer"),
            ("checks", "[Check]"),
            ("connections", "[Connections]"),
            ("waits", "[LockWait]"),
            ("horizon", "[Holder]"),
            ("schema", "Storage|null"),
        ],
    },
    Described {
        path: "/runs",
        summary: "Runs, the newest first, 50 at a time, out of 10,000 that are looked at",
        parameters: &[
            ("state", "running, succeeded, failed or cancelled"),
            ("job", "of this job, maybe among others"),
            ("schedule", "fired by this schedule"),
            BEHIND,
        ],
        answer: &[("runs", "[ListedRun]"), ("next", "integer|null")],
    },
    Described {
        path: "/runs/{id}",
        summary: "One run with up to 300 of its tasks: of more, those that run, failed or cannot run first",
        parameters: &[],
        answer: &[
            ("run", "Run"),
            ("tasks", "[RunTask]"),
            ("edges", "[RunEdge]"),
            ("left_out", "integer"),
            ("too_many_edges", "boolean"),
            ("critical_path", "CriticalPath|null"),
        ],
    },
    Described {
        path: "/runs/{id}/graph",
        summary: "The picture of a run",
        parameters: &[],
        answer: DRAWING,
    },
    Described {
        path: "/schedules",
        summary: "Schedules by name, each with its last runs, 100 at a time",
        parameters: &[BEHIND],
        answer: &[("schedules", "[Schedule]"), ("mistakes", "[Mistake]"), ("next", "string|null")],
    },
    Described {
        path: "/schedules/one",
        summary: "One schedule: its next fires, the runs it started, what happened to it",
        parameters: &[NAME],
        answer: &[
            ("schedule", "Schedule"),
            ("fires", "[Fire]"),
            ("history", "[Fired]"),
            ("log", "[Logged]"),
        ],
    },
    Described {
        path: "/jobs",
        summary: "Jobs by name, each with its newest run, 100 at a time",
        parameters: &[BEHIND],
        answer: &[("jobs", "[ListedJob]"), ("next", "string|null")],
    },
    Described {
        path: "/jobs/one",
        summary: "One job with up to 300 of its tasks, and what waits for what among these",
        parameters: &[NAME],
        answer: &[("job", "Job"), ("edges", "[Link]")],
    },
    Described {
        path: "/jobs/graph",
        summary: "The picture of a job",
        parameters: &[NAME],
        answer: DRAWING,
    },
    Described {
        path: "/lineage",
        summary: "All that a task waits for, and all that waits for it, over all jobs",
        parameters: &[NAME],
        answer: &[("task", "string"), ("tasks", "[string]"), ("edges", "[Link]")],
    },
    Described {
        path: "/lineage/graph",
        summary: "The picture of that",
        parameters: &[NAME],
        answer: DRAWING,
    },
];

/// The document.
pub(crate) fn document() -> Value {
    let paths: Map<String, Value> =
        PATHS.iter().map(|it| (format!("/api/v1{}", it.path), described(it))).collect();
    let schemas: Map<String, Value> =
        schemas::SCHEMAS.iter().map(|(name, fields)| ((*name).to_owned(), named(fields))).collect();
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

fn refused(why: &str) -> Value {
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

fn named(fields: &str) -> Value {
    object(fields.split_whitespace().filter_map(|field| field.split_once(':')))
}

/// What a parameter may be. Of a filter and of the pages of a list by it, which have a language of their own, it
/// says that they are text.
fn parameter(path: &str, name: &str) -> Value {
    match name {
        "id" => json!({ "type": "integer", "format": "int64", "minimum": 1, "maximum": i64::MAX }),
        "before" => json!({ "type": "integer", "format": "int64" }),
        "behind" if path == "/runs" => json!({ "type": "integer", "format": "int64" }),
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

fn described(it: &Described) -> Value {
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
    let schema = object(it.answer.iter().copied());
    json!({ "get": {
        "summary": it.summary,
        "parameters": parameters,
        "responses": {
            "200": { "description": "It", "content": { "application/json": { "schema": schema } } },
            "400": refused("A parameter that cannot be read"),
            "401": refused("No token"),
            "403": refused("No right, or a name that this console is not known by"),
            "404": refused("There is none"),
            "422": refused("The database refuses it"),
            "503": refused("No database"),
            "504": refused("It took longer than it may"),
        },
    } })
}
