//! The schema, the documents, the deployment files and the style of the code.

pub(crate) mod book;
pub(crate) mod deploy;
pub(crate) mod docs;
pub(crate) mod json_documents;
pub(crate) mod loadtest;
pub(crate) mod row;
pub(crate) mod schema;
pub(crate) mod settings;
pub(crate) mod tidy;
pub(crate) mod tidy_layout;
pub(crate) mod tidy_names;
pub(crate) mod tidy_prose;
pub(crate) mod tidy_schema;
pub(crate) mod upgrade;
pub(crate) mod versions;
