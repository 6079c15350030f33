//! The macro `pg_enum!` of the client crate, with a schema for OpenAPI.

/// Defines an enum as the macro of the client crate does, with a schema for OpenAPI.
#[macro_export]
macro_rules! pg_enum {
    ($(#[$doc:meta])* $name:ident $labels:tt) => {
        $crate::client::pg_enum! { $(#[$doc])* #[derive(utoipa::ToSchema)] $name $labels }
    };
}
