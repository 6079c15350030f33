//! Names under which the tasks of a dbt project carry what `pgmill run results` reports.

/// Key of a task's metadata: the unique id of its node.
pub const NODE: &str = "dbt_node";

/// Key of a task's metadata: the relation of its node.
pub const RELATION: &str = "dbt_relation";

/// Key of a task's metadata: the type of its node.
pub const RESOURCE_TYPE: &str = "dbt_resource_type";

/// Key of a job's metadata: the version of dbt that compiled the project.
pub const VERSION: &str = "dbt_version";

/// Column in the result of a test: the number of failures.
pub const FAILURES: &str = "failures";

/// Column in the result of a test: whether they are a warning.
pub const WARNED: &str = "warned";
