//! Binary results as the text that psql would show, for the types that results mostly have.

use jiff::civil::{Date, DateTime, Time};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

/// A value as text; null stays null, and a type that is not known here shows as its name.
pub(crate) fn decode(row: &Row, index: usize) -> Option<String> {
    let ty = row.columns()[index].type_();
    match *ty {
        Type::BOOL => text::<bool>(row, index).map(|b| if b == "true" { "t" } else { "f" }.into()),
        Type::INT2 => text::<i16>(row, index),
        Type::INT4 => text::<i32>(row, index),
        Type::INT8 => text::<i64>(row, index),
        Type::OID => text::<u32>(row, index),
        Type::FLOAT4 => text::<f32>(row, index),
        Type::FLOAT8 => text::<f64>(row, index),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN => {
            text::<String>(row, index)
        }
        Type::JSON | Type::JSONB => text::<serde_json::Value>(row, index),
        Type::UUID => text::<uuid::Uuid>(row, index),
        Type::DATE => text::<Date>(row, index),
        Type::TIME => text::<Time>(row, index),
        Type::TIMESTAMP => text::<DateTime>(row, index),
        Type::TIMESTAMPTZ => text::<jiff::Timestamp>(row, index),
        Type::NUMERIC => text::<Numeric>(row, index),
        Type::VOID => Some(String::new()),
        _ => text::<Other>(row, index).map(|_| format!("<{}>", ty.name())),
    }
}

fn text<'a, T: FromSql<'a> + ToString>(row: &'a Row, index: usize) -> Option<String> {
    row.try_get::<_, Option<T>>(index).ok().flatten().map(|value| value.to_string())
}

/// A value of a type that is not known here.
struct Other;

impl std::fmt::Display for Other {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}

impl<'a> FromSql<'a> for Other {
    fn from_sql(_: &Type, _: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// A numeric, in decimal.
struct Numeric(String);

impl std::fmt::Display for Numeric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'a> FromSql<'a> for Numeric {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        numeric(raw).map(Self).ok_or_else(|| "malformed numeric".into())
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::NUMERIC
    }
}

/// The wire form is four 16-bit words (digit count, weight of the first digit, sign, scale) and
/// then digits to the base of 10,000 (`numeric_send` in the server's numeric.c).
fn numeric(raw: &[u8]) -> Option<String> {
    let words: Vec<i16> =
        raw.chunks_exact(2).map(|pair| i16::from_be_bytes([pair[0], pair[1]])).collect();
    let (header, digits) = words.split_at_checked(4)?;
    let [count, weight, sign, scale] = *header else { return None };
    let mut text = match sign.cast_unsigned() {
        0x0000 => String::new(),
        0x4000 => String::from("-"),
        0xC000 => return Some("NaN".to_owned()),
        0xD000 => return Some("Infinity".to_owned()),
        0xF000 => return Some("-Infinity".to_owned()),
        _ => return None,
    };
    let digits = digits.get(..usize::try_from(count).ok()?)?;
    let digit = |place: i32| {
        usize::try_from(i32::from(weight) - place).ok().and_then(|i| digits.get(i)).copied()
    };
    let whole: String = (0..=i32::from(weight))
        .rev()
        .map(|place| format!("{:04}", digit(place).unwrap_or(0)))
        .collect();
    let whole = whole.trim_start_matches('0');
    text.push_str(if whole.is_empty() { "0" } else { whole });
    let scale = usize::try_from(scale).ok()?;
    if scale > 0 {
        let places = i32::try_from(scale.div_ceil(4)).ok()?;
        let fraction: String =
            (1..=places).map(|place| format!("{:04}", digit(-place).unwrap_or(0))).collect();
        text.push('.');
        text.push_str(&fraction[..scale]);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(words: &[u16]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn numerics_read_as_psql_shows_them() {
        assert_eq!(numeric(&wire(&[0, 0, 0, 0])).unwrap(), "0");
        assert_eq!(numeric(&wire(&[2, 0, 0, 2, 12, 3400])).unwrap(), "12.34");
        assert_eq!(numeric(&wire(&[2, 1, 0x4000, 0, 1, 5])).unwrap(), "-10005");
        assert_eq!(numeric(&wire(&[1, 1, 0, 0, 3])).unwrap(), "30000");
        assert_eq!(numeric(&wire(&[1, 0xFFFF, 0, 3, 10])).unwrap(), "0.001");
        assert_eq!(numeric(&wire(&[0, 0, 0xC000, 0])).unwrap(), "NaN");
        assert_eq!(numeric(&[0, 1]), None);
    }
}
