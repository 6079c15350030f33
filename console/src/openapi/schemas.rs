//! Named schemas of API responses.

/// Schema names with their fields as `name:type`. A response has all of these fields and no others.
/// Types are the JSON types, `time` and `uuid` (strings), and the names in this list. `[…]` is an
/// array, `any` is any value, and `|null` allows null.
pub(super) const SCHEMAS: &[(&str, &str)] = &[
    (
        "Act",
        "id:integer at:time login:string role:string|null actor:string|null \
         application:string|null action:string subject:string detail:any",
    ),
    ("ActivePeriod", "opens:string closes:string zone:string"),
    (
        "Attempt",
        "task_id:integer run_id:integer|null attempt:integer final:boolean outcome:string queue:string \
         name:string|null priority:string mode:string enqueued_at:time due_at:time \
         started_at:time|null finished_at:time wait_seconds:number duration_seconds:number|null \
         rows:integer|null sqlstate:string|null message:string|null detail:string|null \
         hint:string|null context:string|null position:integer|null notices:any result:any \
         worker_id:uuid|null worker_host:string|null worker_pid:integer|null \
         session_pid:integer|null statement:string|null params:any \
         tags:[string] metadata:object",
    ),
    (
        "Blocker",
        "pid:integer user:string|null application:string|null state:string|null \
         transaction_started_at:time|null task_id:integer|null name:string|null",
    ),
    ("Check", "check:string status:string message:string hint:string|null"),
    (
        "Connections",
        "application:string|null user:string|null state:string|null count:integer \
         transaction_seconds:number|null",
    ),
    ("Count", "count:integer more:boolean"),
    ("CriticalPath", "nodes:[integer] tasks:[string] duration_seconds:number"),
    (
        "Durations",
        "queue:string name:string attempts:integer failures:integer \
         p50_seconds:number|null p95_seconds:number|null mean_seconds:number|null \
         last_seconds:number|null last_at:time trend:number|null",
    ),
    (
        "FailureGroup",
        "outcome:string sqlstate:string|null message:string|null attempts:integer \
         tasks:integer first_at:time last_at:time queues:[string] names:[string] \
         examples:[integer] cause:string",
    ),
    ("Error", "error:string hint:string|null"),
    ("Fire", "at:time local_time:string"),
    (
        "Fired",
        "run_id:integer schedule:string fire_at:time reason:string state:string \
         started_at:time finished_at:time|null duration_seconds:number tasks:integer \
         attempts:integer|null message:string|null worker:string|null",
    ),
    (
        "FoundTask",
        "id:integer queue:string name:string|null state:string|null outcome:string|null \
         priority:string attempt:integer max_attempts:integer at:time due_at:time \
         duration_seconds:number|null sqlstate:string|null message:string|null \
         worker:string|null statement_head:string|null retried:boolean \
         tags:[string] metadata:object",
    ),
    ("GraphEdge", "from:string to:string label:string|null critical:boolean"),
    (
        "GraphNode",
        "id:string label:string state:string note:string|null critical:boolean \
         path:string|null",
    ),
    (
        "Group",
        "name:string description:string|null priority:string|null max_running:integer|null \
         active_period:ActivePeriod|null open:boolean next_change_at:time|null pending:integer \
         running:integer blocked:integer",
    ),
    (
        "Holder",
        "kind:string name:string user:string|null application:string|null \
         age_xids:integer|null since:time|null age_seconds:number|null state:string|null \
         query:string|null",
    ),
    ("Hour", "succeeded:integer failed:integer per_second:number"),
    (
        "Job",
        "name:string description:string|null category:string|null frequency:string|null \
         priority:string|null enabled:boolean task_count:integer tasks:[JobTask] \
         params:[string] \
         tags:[string] metadata:object",
    ),
    (
        "JobTask",
        "name:string description:string|null statement:string|null queue:string \
         priority:string|null",
    ),
    ("Link", "parent:string child:string expected:string everywhere:boolean jobs:[string]"),
    (
        "ListedJob",
        "name:string description:string|null frequency:string|null enabled:boolean \
         version:integer changed_at:time changed_by:string tasks:integer \
         last_run_id:integer|null last_state:string|null last_started_at:time|null \
         tags:[string] metadata:object",
    ),
    (
        "ListedRun",
        "id:integer jobs:[string] schedule:string|null state:string cancelling:boolean \
         started_at:time started_by:string finished_at:time|null duration_seconds:number \
         restarts:integer tasks:integer finished:integer failed:integer",
    ),
    (
        "LockWait",
        "pid:integer user:string|null application:string|null kind:string mode:string \
         relation:string|null seconds:number|null blocked_by:[integer]",
    ),
    (
        "Logged",
        "id:integer logged_at:time schedule:string event:string fire_at:time|null \
         reason:string|null message:string|null rows:integer|null count:integer|null \
         run_id:integer|null outcome:string|null duration_seconds:number|null",
    ),
    ("DeclarationError", "declared_as:string place:string message:string hint:string|null"),
    ("RecentAttempt", "task_id:integer outcome:string finished_at:time duration_seconds:number"),
    (
        "Plan",
        "attempt:integer finished_at:time shape:string nodes:[PlanNode] totals:PlanTotals \
         previous:PreviousPlan|null changes:[array] changed:boolean|null plan:any",
    ),
    ("PreviousPlan", "task_id:integer finished_at:time shape:string"),
    (
        "PlanNode",
        "depth:integer operation:string executed:boolean rows:number expected_rows:number \
         misestimated:boolean loops:number self_seconds:number blocks_hit:integer \
         blocks_read:integer temp_blocks_written:integer",
    ),
    (
        "PlanTotals",
        "planning_seconds:number|null execution_seconds:number|null wal_bytes:integer|null \
         triggers:[PlanTrigger] truncated:boolean",
    ),
    ("PlanTrigger", "name:string seconds:number calls:integer"),
    ("Priority", "priority:string pending:Count running:Count oldest_seconds:number|null"),
    ("Problem", "age_seconds:number message:string path:string"),
    (
        "Queue",
        "queue:string pending:Count running:Count scheduled:Count blocked:Count \
         oldest_seconds:number|null longest_running_seconds:number|null readers:integer \
         settings:QueueSetting hour:Hour time_to_empty_seconds:number|null \
         growth_per_minute:number|null",
    ),
    (
        "QueueSetting",
        "queue:string paused:boolean shared_commit_seconds:number|null \
         max_running:integer|null rate:Rate|null",
    ),
    ("Rate", "starts:integer period_seconds:number"),
    ("RecentRun", "run_id:integer state:string fire_at:time duration_seconds:number"),
    (
        "Retention",
        "history:string schedule_log:string audit:string days:integer \
         oldest_day:string|null newest_day:string|null",
    ),
    (
        "Run",
        "id:integer jobs:[string] params:any schedule:string|null fire_at:time|null \
         reason:string|null state:string started_at:time started_by:string \
         finished_at:time|null duration_seconds:number cancelled_by:string|null restarts:integer \
         dropped:[string] count:RunCount \
         tags:[string] metadata:object",
    ),
    (
        "RunCount",
        "tasks:integer waiting:integer released:integer succeeded:integer failed:integer \
         ignored:integer cancelled:integer upstream_failed:integer",
    ),
    ("RunEdge", "parent:integer child:integer expected:string"),
    (
        "RunTask",
        "node:integer name:string job:string|null task_id:integer|null state:string \
         started_at:time|null finished_at:time|null duration_seconds:number|null attempts:integer \
         rows:integer|null queue:string priority:string group:string|null pid:integer|null \
         join:string message:string|null result:any \
         tags:[string] metadata:object",
    ),
    (
        "Running",
        "id:integer queue:string name:string|null attempt:integer started_at:time \
         worker_id:uuid host:string|null worker_pid:integer|null backend_pid:integer \
         backend_state:string|null wait_event_type:string|null wait_event:string|null \
         blocked_by:[integer] cancel_requested_at:time|null progress:string|null \
         percent:number|null reported_at:time|null notices:any blockers:any",
    ),
    (
        "Schedule",
        "name:string mode:string timing:string jobs:[string] declared_in:string \
         declared_as:string|null enabled:boolean status:string next_fire_at:time|null \
         last_fire_at:time|null last_finished_at:time|null last_state:string|null \
         last_success_at:time|null error:string|null running_run_id:integer|null overlap:string \
         catch_up:integer max_lateness_seconds:number|null jitter_seconds:number \
         max_attempts:integer|null retry_interval_seconds:number|null params:any \
         version:integer changed_at:time changed_by:string removed_at:time|null \
         queued_fire_at:time|null timing_description:string overdue_seconds:number|null \
         recent:[RecentRun] \
         tags:[string] metadata:object",
    ),
    ("Storage", "version:integer|null tables:[Table] retention:Retention tasks:object"),
    (
        "Table",
        "name:string partitions:integer live_rows:integer dead_rows:integer bytes:integer \
         index_bytes:integer vacuumed_at:time|null",
    ),
    (
        "Task",
        "id:integer state:string|null outcome:string|null queue:string name:string|null \
         key:string|null group:string|null concurrency_key:string|null run_as:string|null \
         priority:string mode:string attempt:integer max_attempts:integer backoff:string \
         retry_interval_seconds:number jitter:boolean timeout_seconds:number|null \
         at_most_once:boolean external:boolean enqueued_at:time due_at:time \
         finished_at:time|null run_id:integer|null params:any statement:string|null \
         tags:[string] metadata:object",
    ),
    ("DurationHistory", "durations:Durations recent:[RecentAttempt]"),
    ("Weight", "priority:string weight:number"),
    (
        "Worker",
        "id:uuid host:string|null pid:integer|null version:string|null \
         schema_version:integer|null started_at:time|null heartbeat_at:time \
         heartbeat_age_seconds:number orphan_timeout_seconds:number alive:boolean \
         session_alive:boolean draining:boolean readers:integer reserved:integer running:integer \
         queues:[string]|null state:string tasks:[Running]",
    ),
];
