//! The macro `pg_enum!`, which defines an enum that mirrors an enum of the schema.

/// Defines an enum whose labels equal those of an enum in the schema. A column is read as text or as
/// the enum. Statements that have to be fast cast the column to text: for a column of an enum type,
/// tokio-postgres first queries the catalog for the type.
#[macro_export]
macro_rules! pg_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Deserialize, serde::Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// Every value, in the schema's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the label in the schema.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!("\"{word}\" is not one of {}", [$($word),+].join(", "))),
                }
            }
        }

        impl<'a> tokio_postgres::types::FromSql<'a> for $name {
            fn from_sql(
                ty: &tokio_postgres::types::Type,
                raw: &'a [u8],
            ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
                Ok(<&str>::from_sql(ty, raw)?.parse()?)
            }

            fn accepts(ty: &tokio_postgres::types::Type) -> bool {
                matches!(ty.kind(), tokio_postgres::types::Kind::Enum(_))
                    || <&str as tokio_postgres::types::FromSql>::accepts(ty)
            }
        }
    };
}
