//! Runs statements, and reads rows by the names of their columns.
//!
//! [`rows`], [`first`] and [`one`] run a statement and read what its rows contain: a struct for which
//! [`from_row!`](crate::from_row) lists the columns, or the value of a single column. [`execute`] ignores the rows, and
//! [`query`] and [`only`] return them: then [`column()`] reads one value of a row. If a column is missing, or its value does not
//! have the requested type, the error names the column.
//!
//! The type of a parameter in SQL follows from its type in Rust: [`SqlType`].

use std::error::Error;
use std::time::{Duration, SystemTime};

use conninfo::GenericClient;
use jiff::Timestamp;
use jiff::civil::Time;
use pgmill_client::{Labels, StoredOptions};
use serde_json::{Map, Value};
use tokio_postgres::types::{FromSql, FromSqlOwned, Json, ToSql, Type};
use tokio_postgres::{Column, Row, Statement};
use uuid::Uuid;

use crate::error::QueueError;
use crate::id::{Token, WorkerId};

pub use crate::from_row;

/// A value that one row of a statement's result contains.
pub trait FromRow: Sized {
    /// Reads the value.
    ///
    /// # Errors
    /// Fails if a column is missing or has another type.
    fn from_row(row: &Row) -> Result<Self, QueueError>;
}

impl<T: FromSqlOwned> FromRow for T {
    fn from_row(row: &Row) -> Result<Self, QueueError> {
        scalar(row)
    }
}

/// A type in Rust whose values have one type in SQL.
pub trait SqlType {
    /// The type in SQL.
    const TYPE: Type;
}

/// A type in Rust whose values can be elements of an array in SQL.
pub trait ElementType {
    /// The type of the array.
    const ARRAY: Type;
}

macro_rules! sql_types {
    ($($name:ty: $kind:ident, $array:ident;)+) => {$(
        impl SqlType for $name {
            const TYPE: Type = Type::$kind;
        }

        impl ElementType for $name {
            const ARRAY: Type = Type::$array;
        }
    )+};
}

sql_types! {
    bool: BOOL, BOOL_ARRAY;
    i32: INT4, INT4_ARRAY;
    i64: INT8, INT8_ARRAY;
    f64: FLOAT8, FLOAT8_ARRAY;
    &str: TEXT, TEXT_ARRAY;
    String: TEXT, TEXT_ARRAY;
    Uuid: UUID, UUID_ARRAY;
    Value: JSONB, JSONB_ARRAY;
    Time: TIME, TIME_ARRAY;
    Timestamp: TIMESTAMPTZ, TIMESTAMPTZ_ARRAY;
    SystemTime: TIMESTAMPTZ, TIMESTAMPTZ_ARRAY;
}

impl<T> SqlType for Json<T> {
    const TYPE: Type = Type::JSONB;
}

impl<T: SqlType> SqlType for Option<T> {
    const TYPE: Type = T::TYPE;
}

impl<T: ElementType> ElementType for Option<T> {
    const ARRAY: Type = T::ARRAY;
}

impl<T: SqlType> SqlType for &T {
    const TYPE: Type = T::TYPE;
}

impl<T: ElementType> ElementType for &T {
    const ARRAY: Type = T::ARRAY;
}

impl<T: ElementType> SqlType for Vec<T> {
    const TYPE: Type = T::ARRAY;
}

impl<T: ElementType> SqlType for &[T] {
    const TYPE: Type = T::ARRAY;
}

/// A parameter of a statement.
pub trait Param: ToSql + Sync {
    /// Returns [`SqlType::TYPE`].
    fn sql_type(&self) -> Type;
}

impl<T: SqlType + ToSql + Sync> Param for T {
    fn sql_type(&self) -> Type {
        T::TYPE
    }
}

/// Returns the rows of the statement.
///
/// # Errors
/// Fails on database errors.
pub async fn query(
    client: &impl GenericClient,
    statement: &str,
    params: &[&dyn Param],
) -> Result<Vec<Row>, QueueError> {
    let typed: Vec<(&(dyn ToSql + Sync), Type)> =
        params.iter().map(|it| (*it as &(dyn ToSql + Sync), it.sql_type())).collect();
    Ok(client.query_typed(statement, &typed).await?)
}

/// Runs the statement.
///
/// # Errors
/// Fails on database errors.
pub async fn execute(
    client: &impl GenericClient,
    statement: &str,
    params: &[&dyn Param],
) -> Result<(), QueueError> {
    query(client, statement, params).await.map(drop)
}

/// Returns what the rows of the statement contain.
///
/// # Errors
/// Fails on database errors, and as [`FromRow::from_row`].
pub async fn rows<T: FromRow>(
    client: &impl GenericClient,
    statement: &str,
    params: &[&dyn Param],
) -> Result<Vec<T>, QueueError> {
    query(client, statement, params).await?.iter().map(T::from_row).collect()
}

/// Returns what the first row of the statement contains, if there is one.
///
/// # Errors
/// Fails on database errors, and as [`FromRow::from_row`].
pub async fn first<T: FromRow>(
    client: &impl GenericClient,
    statement: &str,
    params: &[&dyn Param],
) -> Result<Option<T>, QueueError> {
    query(client, statement, params).await?.first().map(T::from_row).transpose()
}

/// Returns what the row of a statement contains that always returns one.
///
/// # Errors
/// Fails on database errors, and as [`FromRow::from_row`].
pub async fn one<T: FromRow>(
    client: &impl GenericClient,
    statement: &str,
    params: &[&dyn Param],
) -> Result<T, QueueError> {
    T::from_row(&only(client, statement, params).await?)
}

/// Returns the row of a statement that always returns one.
///
/// # Errors
/// Fails on database errors, and if there is no row.
pub async fn only(
    client: &impl GenericClient,
    statement: &str,
    params: &[&dyn Param],
) -> Result<Row, QueueError> {
    let first = query(client, statement, params).await?.into_iter().next();
    first.ok_or_else(|| QueueError::Unexpected {
        column: "result".to_owned(),
        value: "no row".to_owned(),
    })
}

/// Implements [`FromRow`](crate::row::FromRow) from a struct literal. A field without an expression
/// is read from the column of the same name. An expression can refer to the row by the name before
/// the arrow; without such an expression, the name and the arrow can be omitted.
///
/// ```
/// # use queue::row::{column, from_row};
/// struct Interval {
///     name: String,
///     seconds: f64,
///     r#final: bool,
/// }
///
/// from_row! {
///     row => Interval {
///         name, seconds: column::<f64>(row, "seconds")?.max(0.0), r#final: column(row, "final")?,
///     }
/// }
/// ```
#[macro_export]
macro_rules! from_row {
    ($name:ident { $($field:ident),+ $(,)? }) => {
        $crate::from_row! { row => $name { $($field),+ } }
    };
    ($row:ident => $name:ident { $($field:ident $(: $value:expr)?),+ $(,)? }) => {
        impl $crate::row::FromRow for $name {
            fn from_row($row: &tokio_postgres::Row) -> Result<Self, $crate::QueueError> {
                Ok(Self { $($field: $crate::from_row!(@value $row, $field $(, $value)?)),+ })
            }
        }
    };
    (@value $row:ident, $field:ident) => { $crate::row::column($row, stringify!($field))? };
    (@value $row:ident, $field:ident, $value:expr) => { $value };
}

/// Reads the value of the column with this name. No other column may have the name.
///
/// # Errors
/// Fails if the row has no such column, or the value does not have the type `T`.
pub fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<T, QueueError> {
    debug_assert!(
        row.columns().iter().filter(|column| column.name() == name).count() < 2,
        "several columns {name}"
    );
    row.try_get(name).map_err(|error| unexpected(name, &error))
}

/// Reads the value of a row with a single column.
///
/// # Errors
/// Fails if the row has another number of columns, or the value does not have the type `T`.
pub fn scalar<'a, T: FromSql<'a>>(row: &'a Row) -> Result<T, QueueError> {
    match row.columns() {
        [only] => column(row, only.name()),
        columns => Err(QueueError::Unexpected {
            column: columns.iter().map(Column::name).collect::<Vec<_>>().join(", "),
            value: format!("{} columns instead of one", columns.len()),
        }),
    }
}

/// Reads tags and metadata from the columns of these names.
///
/// # Errors
/// As [`column()`].
pub fn labels(row: &Row) -> Result<Labels, QueueError> {
    let metadata = match column(row, "metadata")? {
        Some(Value::Object(metadata)) => metadata,
        _ => Map::new(),
    };
    Ok(Labels { tags: column::<Option<_>>(row, "tags")?.unwrap_or_default(), metadata })
}

/// Reads the column `options`.
///
/// # Errors
/// As [`column()`].
pub fn stored_options(row: &Row) -> Result<StoredOptions, QueueError> {
    Ok(column::<Option<Json<_>>>(row, "options")?.map(|it| it.0).unwrap_or_default())
}

/// Converts seconds, the form in which the database returns an interval. A negative number becomes
/// zero, and one above a century becomes a century.
#[must_use]
pub fn duration(seconds: f64) -> Duration {
    const CENTURY: f64 = 100.0 * 365.0 * 86_400.0;
    Duration::try_from_secs_f64(seconds.clamp(0.0, CENTURY)).unwrap_or_default()
}

/// The message of the client library names the column by its position, and the cause does not name
/// it.
fn unexpected(column: &str, error: &tokio_postgres::Error) -> QueueError {
    error.source().map_or_else(
        || missing(column),
        |cause| QueueError::Unexpected { column: column.to_owned(), value: cause.to_string() },
    )
}

fn missing(column: &str) -> QueueError {
    QueueError::Unexpected { column: column.to_owned(), value: "no such column".to_owned() }
}

/// Position of a column in the result of a prepared statement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position(usize);

impl Position {
    /// Finds the column with this name.
    pub(crate) fn of(statement: &Statement, name: &str) -> Result<Self, QueueError> {
        let position = statement.columns().iter().position(|column| column.name() == name);
        position.map(Self).ok_or_else(|| missing(name))
    }

    /// Reads the value of the column.
    pub(crate) fn get<'a, T: FromSql<'a>>(self, row: &'a Row) -> Result<T, QueueError> {
        row.try_get(self.0).map_err(|error| unexpected(row.columns()[self.0].name(), &error))
    }
}

/// Defines a struct with the positions of these columns. The positions are found once per
/// statement, whereas [`column()`] searches the names of the columns again for every row.
macro_rules! positions {
    ($(#[$doc:meta])* $name:ident { $($column:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug)]
        struct $name { $($column: $crate::row::Position),+ }

        impl $name {
            fn of(statement: &tokio_postgres::Statement) -> Result<Self, $crate::QueueError> {
                use $crate::row::Position;
                Ok(Self { $($column: Position::of(statement, stringify!($column))?),+ })
            }
        }
    };
}
pub(crate) use positions;

/// Reads a newtype from a column of its inner type.
macro_rules! newtypes {
    ($($name:ident($inner:ty)),+ $(,)?) => {$(
        impl<'a> FromSql<'a> for $name {
            fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
                <$inner>::from_sql(ty, raw).map(Self)
            }

            fn accepts(ty: &Type) -> bool {
                <$inner as FromSql>::accepts(ty)
            }
        }
    )+};
}

newtypes! { WorkerId(Uuid), Token(Uuid) }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_parameter_follows_from_its_type_in_rust() {
        let (names, ids): (&[&str], _) = (&["a"], vec![Some(1_i64)]);
        let params: [(&dyn Param, Type); 8] = [
            (&"a", Type::TEXT),
            (&Some("a".to_owned()), Type::TEXT),
            (&None::<&i32>, Type::INT4),
            (&names, Type::TEXT_ARRAY),
            (&Some(names), Type::TEXT_ARRAY),
            (&ids, Type::INT8_ARRAY),
            (&vec![None::<&Value>], Type::JSONB_ARRAY),
            (&Json(["a"]), Type::JSONB),
        ];
        for (param, expected) in params {
            assert_eq!(param.sql_type(), expected, "{param:?}");
        }
    }
}
