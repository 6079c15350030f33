//! Closed sets of words, each an enum here and an enum of the same labels in the schema.

use tokio_postgres::Row;

use crate::error::QueueError;

/// A closed set of words that stands in the schema as an enum of the same labels.
#[macro_export]
macro_rules! pg_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// Every value, in the schema's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word as it stands in the schema.
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
                    _ => Err(format!("\"{word}\" is none of {}", [$($word),+].join(", "))),
                }
            }
        }
    };
}

/// The word in a column of a row.
///
/// # Errors
/// Another version's word, or no text.
pub fn enum_column<T: std::str::FromStr>(
    row: &Row,
    index: usize,
    column: &'static str,
) -> Result<T, QueueError> {
    let value: &str = row.try_get(index)?;
    value.parse().map_err(|_| QueueError::Unexpected { column, value: value.to_owned() })
}
