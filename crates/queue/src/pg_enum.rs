//! Enums that mirror the enums of the schema.

/// Defines an enum as the macro of the client crate does, with a schema for OpenAPI.
#[macro_export]
macro_rules! pg_enum {
    ($(#[$doc:meta])* $name:ident $labels:tt) => {
        $crate::client::pg_enum! { $(#[$doc])* #[derive(utoipa::ToSchema)] $name $labels }
    };
}
