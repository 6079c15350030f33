//! What the JSON looks like, for programs: `/api/v1/openapi.json`.

use serde_json::{Map, Value, json};

/// A path of the API.
pub struct Described {
    /// Below `/api/v1`.
    pub path: &'static str,
    /// What it answers.
    pub summary: &'static str,
    /// Parameters of the query: name, meaning.
    pub parameters: &'static [(&'static str, &'static str)],
    /// What an answer has in any case: name and JSON type.
    pub answer: &'static [(&'static str, &'static str)],
}

const NAME: (&str, &str) = ("name", "of this one");
const BEHIND: (&str, &str) = ("behind", "`next` of the page before");

/// What a picture is drawn from.
const DRAWING: &[(&str, &str)] = &[
    ("nodes", "array"),
    ("edges", "array"),
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
            ("problems", "array"),
            ("queues", "array"),
            ("hour", "object"),
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
        answer: &[("tasks", "array"), ("next", "string|null"), ("looked_back_to", "string|null")],
    },
    Described {
        path: "/tasks/{id}",
        summary: "Everything about one task",
        parameters: &[],
        answer: &[
            ("task", "object"),
            ("why", "string|null"),
            ("running", "object|null"),
            ("blockers", "array"),
            ("attempts", "array"),
            ("usual", "object|null"),
            ("plan", "object|null"),
        ],
    },
    Described {
        path: "/failures",
        summary: "Failures by cause, the most frequent first",
        parameters: &[
            ("since", "within this time: 90s, 15m, 2h, 3d; an hour if it is left out"),
            ("queue", "causes that this queue has a part in"),
        ],
        answer: &[("groups", "array")],
    },
    Described {
        path: "/workers",
        summary: "Workers and what they run",
        parameters: &[],
        answer: &[("workers", "array")],
    },
    Described {
        path: "/queues",
        summary: "Queues; where `more` is true, the counting ended",
        parameters: &[],
        answer: &[("queues", "array")],
    },
    Described {
        path: "/priorities",
        summary: "Priorities and their weights",
        parameters: &[],
        answer: &[("priorities", "array"), ("weights", "array")],
    },
    Described {
        path: "/groups",
        summary: "Groups; counts end at 10,000",
        parameters: &[],
        answer: &[("groups", "array")],
    },
    Described {
        path: "/throughput",
        summary: "Ends, wait and run times, and tasks waiting at its end, of each minute of the last hours; null where nothing is known",
        parameters: &[QUEUE, ("hours", "so many, from 1 to 6; one if it is left out")],
        answer: &[
            ("at", "array"),
            ("succeeded", "array"),
            ("failed", "array"),
            ("cancelled", "array"),
            ("wait_p50_seconds", "array"),
            ("wait_p95_seconds", "array"),
            ("run_p50_seconds", "array"),
            ("run_p95_seconds", "array"),
            ("waiting", "array"),
            ("waiting_at_least", "array"),
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
        answer: &[("acts", "array"), ("next", "integer|null")],
    },
    Described {
        path: "/database",
        summary: "The server, checks of pgmill doctor, locks, connections, tables, retention",
        parameters: &[],
        answer: &[
            ("server_version", "string"),
            ("connections_allowed", "integer"),
            ("connections_open", "integer"),
            ("checks", "array"),
            ("connections", "array"),
            ("waits", "array"),
            ("horizon", "array"),
            ("schema", "object|null"),
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
        answer: &[("runs", "array"), ("next", "integer|null")],
    },
    Described {
        path: "/runs/{id}",
        summary: "One run with up to 300 of its tasks: of more, those that run, failed or cannot run first",
        parameters: &[],
        answer: &[
            ("run", "object"),
            ("tasks", "array"),
            ("edges", "array"),
            ("left_out", "integer"),
            ("too_many_edges", "boolean"),
            ("critical_path", "object|null"),
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
        answer: &[("schedules", "array"), ("mistakes", "array"), ("next", "string|null")],
    },
    Described {
        path: "/schedules/one",
        summary: "One schedule: its next fires, the runs it started, what happened to it",
        parameters: &[NAME],
        answer: &[
            ("schedule", "object"),
            ("fires", "array"),
            ("history", "array"),
            ("log", "array"),
        ],
    },
    Described {
        path: "/jobs",
        summary: "Jobs by name, each with its newest run, 100 at a time",
        parameters: &[BEHIND],
        answer: &[("jobs", "array"), ("next", "string|null")],
    },
    Described {
        path: "/jobs/one",
        summary: "One job with up to 300 of its tasks, and what waits for what among these",
        parameters: &[NAME],
        answer: &[("job", "object"), ("edges", "array")],
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
        answer: &[("task", "string"), ("tasks", "array"), ("edges", "array")],
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
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "pgmill console",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Reading only. Times are RFC 3339 in UTC, spans are seconds.",
        },
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Error": {
                "type": "object",
                "required": ["error", "hint"],
                "properties": {
                    "error": { "type": "string", "description": "What is wrong" },
                    "hint": { "type": ["string", "null"], "description": "What to do about it" },
                },
            } },
        },
        "paths": paths,
    })
}

fn refused(why: &str) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Error" });
    json!({ "description": why, "content": { "application/json": { "schema": schema } } })
}

fn described(it: &Described) -> Value {
    let query = it.parameters.iter().map(|(name, meaning)| {
        json!({ "name": name, "in": "query", "description": meaning, "schema": { "type": "string" } })
    });
    let of_path = it.path.contains("{id}").then(
        || json!({ "name": "id", "in": "path", "required": true, "schema": { "type": "integer" } }),
    );
    let parameters: Vec<Value> = of_path.into_iter().chain(query).collect();
    let properties: Map<String, Value> = it
        .answer
        .iter()
        .map(|(name, kind)| {
            ((*name).to_owned(), json!({ "type": kind.split('|').collect::<Vec<_>>() }))
        })
        .collect();
    let required: Vec<&str> = it.answer.iter().map(|(name, _)| *name).collect();
    let schema = json!({ "type": "object", "required": required, "properties": properties });
    json!({ "get": {
        "summary": it.summary,
        "parameters": parameters,
        "responses": {
            "200": { "description": "It", "content": { "application/json": { "schema": schema } } },
            "400": refused("A parameter that cannot be read"),
            "404": refused("There is none"),
            "default": refused("No token, no right, or no database in time"),
        },
    } })
}
