//! Binds JSON values as statement parameters in text format, so that the server parses each value
//! as the type of its parameter. Values are never inserted into the statement's text.

use std::error::Error;

use bytes::BytesMut;
use serde_json::value::RawValue;
use tokio_postgres::types::{Format, IsNull, Kind, ToSql, Type, to_sql_checked};

/// Maximum number of dimensions of an array: PostgreSQL's MAXDIM.
const MAX_DIMENSIONS: usize = 6;

/// One value of `params`, kept as JSON text. As a parsed number it would lose digits, and a parsed
/// tree would need recursion.
#[derive(Debug)]
pub struct Param<'a>(pub &'a RawValue);

impl ToSql for Param<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        Ok(match text(self.0, ty)? {
            None => IsNull::Yes,
            Some(text) => {
                out.extend_from_slice(text.as_bytes());
                IsNull::No
            }
        })
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// Returns a value in the text format of its type; `None` for null. This is JSON for JSON types, an
/// array literal for other array types, and the bare text for all other types.
fn text(value: &RawValue, ty: &Type) -> serde_json::Result<Option<String>> {
    let json = value.get();
    if [Type::JSON, Type::JSONB].contains(ty) {
        return Ok(Some(json.to_owned()));
    }
    Ok(match (json.as_bytes().first(), ty.kind()) {
        (Some(b'n'), _) => None,
        (Some(b'"'), _) => Some(serde_json::from_str(json)?),
        (Some(b'['), Kind::Array(item_type)) => Some(array_literal(json, item_type, 1)?),
        _ => Some(json.to_owned()),
    })
}

/// Returns the array literal `{…}`, with each element quoted (PostgreSQL documentation, "Array
/// Input and Output Syntax").
fn array_literal(json: &str, item_type: &Type, dimension: usize) -> serde_json::Result<String> {
    let items: Vec<&RawValue> = serde_json::from_str(json)?;
    let nests = dimension < MAX_DIMENSIONS && ![Type::JSON, Type::JSONB].contains(item_type);
    let mut literal = String::from("{");
    for (n, item) in items.into_iter().enumerate() {
        if n > 0 {
            literal.push(',');
        }
        if nests && item.get().starts_with('[') {
            literal.push_str(&array_literal(item.get(), item_type, dimension + 1)?);
            continue;
        }
        let Some(text) = text(item, item_type)? else {
            literal.push_str("NULL");
            continue;
        };
        literal.push('"');
        for c in text.chars() {
            if matches!(c, '"' | '\\') {
                literal.push('\\');
            }
            literal.push(c);
        }
        literal.push('"');
    }
    literal.push('}');
    Ok(literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &str, ty: &Type) -> Option<String> {
        super::text(serde_json::from_str(json).unwrap(), ty).unwrap()
    }

    #[test]
    fn values_have_the_text_format_of_their_type() {
        assert_eq!(text("\"it's\"", &Type::TEXT), Some("it's".to_owned()));
        assert_eq!(text("7", &Type::INT4), Some("7".to_owned()));
        assert_eq!(text("1e400", &Type::NUMERIC), Some("1e400".to_owned()));
        assert_eq!(text("true", &Type::BOOL), Some("true".to_owned()));
        assert_eq!(text("null", &Type::INT4), None);
        assert_eq!(text("null", &Type::JSONB), Some("null".to_owned()));
        assert_eq!(text("{\"a\": 1}", &Type::JSONB), Some("{\"a\": 1}".to_owned()));
        assert_eq!(text("[1, 2]", &Type::JSONB), Some("[1, 2]".to_owned()));
    }

    #[test]
    fn arrays_become_array_literals() {
        assert_eq!(text("[1, null, 3]", &Type::INT4_ARRAY), Some("{\"1\",NULL,\"3\"}".into()));
        assert_eq!(
            text(r#"["a\"b", "c\\d", "e,f"]"#, &Type::TEXT_ARRAY),
            Some("{\"a\\\"b\",\"c\\\\d\",\"e,f\"}".into())
        );
        assert_eq!(text("[[1], [2]]", &Type::INT4_ARRAY), Some("{{\"1\"},{\"2\"}}".into()));
    }

    #[test]
    fn nesting_depth_is_unlimited() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(text(&deep, &Type::INT4_ARRAY).is_some());
    }
}
