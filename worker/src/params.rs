//! JSON values as parameters: bound in text format, so that the server reads each as the type that
//! the statement asks for. Nothing is ever pasted into the statement.

use std::error::Error;

use bytes::BytesMut;
use serde_json::Value;

use tokio_postgres::types::{Format, IsNull, Kind, ToSql, Type, to_sql_checked};

/// One value of `params`.
#[derive(Debug)]
pub(crate) struct Param<'a>(pub(crate) &'a Value);

impl ToSql for Param<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        Ok(match text(self.0, ty) {
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

/// A value in the text format of its type: JSON types get JSON, arrays of anything else get an
/// array literal, and every other type the bare text.
fn text(value: &Value, ty: &Type) -> Option<String> {
    if [Type::JSON, Type::JSONB].contains(ty) {
        return Some(value.to_string());
    }
    match (value, ty.kind()) {
        (Value::Null, _) => None,
        (Value::String(text), _) => Some(text.clone()),
        (Value::Array(items), Kind::Array(item_type)) => Some(array_literal(items, item_type)),
        (other, _) => Some(other.to_string()),
    }
}

/// `{…}` with each element quoted (PostgreSQL documentation, "Array Input and Output Syntax").
fn array_literal(items: &[Value], item_type: &Type) -> String {
    let mut literal = String::from("{");
    for (n, item) in items.iter().enumerate() {
        if n > 0 {
            literal.push(',');
        }
        match (item, text(item, item_type)) {
            (Value::Array(inner), _) if ![Type::JSON, Type::JSONB].contains(item_type) => {
                literal.push_str(&array_literal(inner, item_type));
            }
            (_, None) => literal.push_str("NULL"),
            (_, Some(text)) => {
                literal.push('"');
                for c in text.chars() {
                    if matches!(c, '"' | '\\') {
                        literal.push('\\');
                    }
                    literal.push(c);
                }
                literal.push('"');
            }
        }
    }
    literal.push('}');
    literal
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_take_the_form_of_their_type() {
        assert_eq!(text(&json!("it's"), &Type::TEXT), Some("it's".to_owned()));
        assert_eq!(text(&json!(7), &Type::INT4), Some("7".to_owned()));
        assert_eq!(text(&json!(true), &Type::BOOL), Some("true".to_owned()));
        assert_eq!(text(&json!(null), &Type::INT4), None);
        assert_eq!(text(&json!({"a": 1}), &Type::JSONB), Some("{\"a\":1}".to_owned()));
        assert_eq!(text(&json!([1, 2]), &Type::JSONB), Some("[1,2]".to_owned()));
    }

    #[test]
    fn arrays_become_array_literals() {
        assert_eq!(
            text(&json!([1, null, 3]), &Type::INT4_ARRAY),
            Some("{\"1\",NULL,\"3\"}".into())
        );
        assert_eq!(
            text(&json!(["a\"b", "c\\d", "e,f"]), &Type::TEXT_ARRAY),
            Some("{\"a\\\"b\",\"c\\\\d\",\"e,f\"}".into())
        );
        assert_eq!(text(&json!([[1], [2]]), &Type::INT4_ARRAY), Some("{{\"1\"},{\"2\"}}".into()));
    }
}
