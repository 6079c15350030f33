//! Decodes binary results of common types into the text that psql shows.

use std::error::Error;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Kind, Type};

/// Maximum number of dimensions of an array: PostgreSQL's MAXDIM.
const MAX_DIMENSIONS: usize = 6;

/// Size of an array as text, in bytes, above which its remaining elements are omitted. No caller
/// keeps more of a value. Without this limit a small value could become a large text: `1e131071`
/// takes 14 bytes on the wire and 128 kB as text, and an array may contain many such numbers.
const MAX_ARRAY_BYTES: usize = 4 * 1024;

/// Number of bytes of a bytea, above which its remaining bytes are omitted: the text is longer than
/// any caller keeps.
const MAX_BYTEA_BYTES: usize = MAX_ARRAY_BYTES;

/// A value as text.
pub(crate) enum Decoded {
    /// The text of the value.
    Text(String),
    /// What is shown instead of a value without text, and why it has none.
    Placeholder { shown: String, reason: String },
}

impl Decoded {
    /// Stands for a value in another encoding than UTF-8.
    pub(crate) fn not_utf8() -> Self {
        Self::Placeholder {
            shown: "(not valid UTF-8)".to_owned(),
            reason: "the value is not valid UTF-8".to_owned(),
        }
    }
}

/// Returns a value as text; `None` for null. The placeholder of an unsupported type is its name.
pub(crate) fn decode(row: &Row, index: usize) -> Option<Decoded> {
    let ty = row.columns()[index].type_();
    let Raw(raw) = row.try_get::<_, Option<Raw<'_>>>(index).ok().flatten()?;
    Some(match value(ty, raw) {
        Some(text) => Decoded::Text(text),
        None if is_text(ty) => Decoded::not_utf8(),
        None => Decoded::Placeholder {
            shown: format!("<{}>", ty.name()),
            reason: format!(
                "the value of type {} has no text form in a task with parameters",
                ty.name()
            ),
        },
    })
}

/// The bytes of a value of any type.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// Returns a value of this type as text; `None` if the type is unsupported or the bytes are
/// invalid.
pub fn value(ty: &Type, raw: &[u8]) -> Option<String> {
    Some(match *ty {
        Type::BOOL => if raw == [0] { "f" } else { "t" }.to_owned(),
        Type::INT2 => text::<i16>(ty, raw)?,
        Type::INT4 => text::<i32>(ty, raw)?,
        Type::INT8 => text::<i64>(ty, raw)?,
        Type::OID => text::<u32>(ty, raw)?,
        Type::FLOAT4 => text::<f32>(ty, raw)?,
        Type::FLOAT8 => text::<f64>(ty, raw)?,
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN | Type::JSON => {
            utf8(raw)?
        }
        // The wire format is a version byte, followed by the text that the server prints.
        Type::JSONB => utf8(raw.get(1..)?)?,
        Type::UUID => text::<uuid::Uuid>(ty, raw)?,
        Type::DATE => instant::<Date>(ty, raw)?,
        Type::TIME => text::<Time>(ty, raw)?,
        Type::TIMESTAMP => instant::<DateTime>(ty, raw)?.replace('T', " "),
        Type::TIMESTAMPTZ => instant::<Timestamp>(ty, raw)?.replace('T', " ").replace('Z', "+00"),
        Type::NUMERIC => numeric(raw)?,
        Type::BYTEA => hex(raw),
        Type::VOID => String::new(),
        _ => match ty.kind() {
            Kind::Enum(_) => utf8(raw)?,
            Kind::Domain(base) => value(base, raw)?,
            Kind::Array(item) => array(item, raw)?,
            _ => return None,
        },
    })
}

fn utf8(raw: &[u8]) -> Option<String> {
    str::from_utf8(raw).ok().map(str::to_owned)
}

/// Returns the beginning of a bytea: `\x0102`. The rest would be omitted by the caller.
fn hex(raw: &[u8]) -> String {
    let digits = raw.iter().take(MAX_BYTEA_BYTES).map(|byte| format!("{byte:02x}"));
    ["\\x".to_owned()].into_iter().chain(digits).collect()
}

/// Returns whether values of the type are text, so that only invalid UTF-8 has no text.
fn is_text(ty: &Type) -> bool {
    match ty.kind() {
        Kind::Enum(_) => true,
        Kind::Domain(inner) | Kind::Array(inner) => is_text(inner),
        _ => matches!(
            *ty,
            Type::TEXT
                | Type::VARCHAR
                | Type::BPCHAR
                | Type::NAME
                | Type::UNKNOWN
                | Type::JSON
                | Type::JSONB
        ),
    }
}

/// Decodes a date or a timestamp. The text of a year before 1 would not be the one that the server
/// prints, which ends in BC.
fn instant<'a, T: FromSql<'a> + ToString>(ty: &Type, raw: &'a [u8]) -> Option<String> {
    match raw {
        [0x7f, rest @ ..] if rest.iter().all(|byte| *byte == 0xff) => {
            return Some("infinity".to_owned());
        }
        [0x80, rest @ ..] if rest.iter().all(|byte| *byte == 0) => {
            return Some("-infinity".to_owned());
        }
        _ => {}
    }
    text::<T>(ty, raw).filter(|text| !text.starts_with('-') && !text.starts_with("0000"))
}

fn text<'a, T: FromSql<'a> + ToString>(ty: &Type, raw: &'a [u8]) -> Option<String> {
    T::from_sql(ty, raw).ok().map(|value| value.to_string())
}

/// Decodes an array. The wire format begins with the number of dimensions, a flag for nulls and the
/// element type. The length and the lower bound of each dimension follow, then the elements, each
/// preceded by its length, or −1 for null (`array_send` in the server's arrayfuncs.c). A lower
/// bound other than 1 is not shown.
fn array(item: &Type, raw: &[u8]) -> Option<String> {
    let mut rest = raw;
    let dimensions = usize::try_from(read_i32(&mut rest)?).ok()?;
    read_i32(&mut rest)?;
    read_i32(&mut rest)?;
    if dimensions > MAX_DIMENSIONS {
        return None;
    }
    let mut lengths = Vec::new();
    for _ in 0..dimensions {
        lengths.push(usize::try_from(read_i32(&mut rest)?).ok()?);
        read_i32(&mut rest)?;
    }
    let mut text = String::new();
    if lengths.is_empty() {
        text.push_str("{}");
    } else {
        elements(item, &lengths, &mut rest, &mut text)?;
    }
    Some(text)
}

fn elements(item: &Type, lengths: &[usize], rest: &mut &[u8], text: &mut String) -> Option<()> {
    let Some((length, inner)) = lengths.split_first() else {
        text.push_str(&element(item, rest)?);
        return Some(());
    };
    text.push('{');
    for n in 0..*length {
        if text.len() > MAX_ARRAY_BYTES {
            break;
        }
        if n > 0 {
            text.push(',');
        }
        elements(item, inner, rest, text)?;
    }
    text.push('}');
    Some(())
}

fn element(item: &Type, rest: &mut &[u8]) -> Option<String> {
    let Ok(length) = usize::try_from(read_i32(rest)?) else { return Some("NULL".to_owned()) };
    let (raw, after) = rest.split_at_checked(length)?;
    *rest = after;
    let text = value(item, raw)?;
    let special = |c: char| c.is_ascii_whitespace() || "{},\"\\".contains(c);
    if text.is_empty() || text.eq_ignore_ascii_case("NULL") || text.contains(special) {
        return Some(format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")));
    }
    Some(text)
}

/// Reads the next four bytes.
fn read_i32(rest: &mut &[u8]) -> Option<i32> {
    let (word, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(i32::from_be_bytes(*word))
}

/// Decodes a numeric. The wire format is four 16-bit words (digit count, weight of the first digit,
/// sign, scale), followed by digits to the base 10,000 (`numeric_send` in the server's numeric.c).
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
    fn numerics_are_decoded_as_psql_shows_them() {
        assert_eq!(numeric(&wire(&[0, 0, 0, 0])).unwrap(), "0");
        assert_eq!(numeric(&wire(&[2, 0, 0, 2, 12, 3400])).unwrap(), "12.34");
        assert_eq!(numeric(&wire(&[2, 1, 0x4000, 0, 1, 5])).unwrap(), "-10005");
        assert_eq!(numeric(&wire(&[1, 1, 0, 0, 3])).unwrap(), "30000");
        assert_eq!(numeric(&wire(&[1, 0xFFFF, 0, 3, 10])).unwrap(), "0.001");
        assert_eq!(numeric(&wire(&[0, 0, 0xC000, 0])).unwrap(), "NaN");
        assert_eq!(numeric(&[0, 1]), None);
    }

    #[test]
    fn other_values_are_decoded_as_the_server_prints_them_or_not_at_all() {
        let decoded = |ty: Type, raw: &[u8]| value(&ty, raw);
        assert_eq!(decoded(Type::BYTEA, &[0, 0xfe]).as_deref(), Some("\\x00fe"));
        assert_eq!(decoded(Type::DATE, &i32::MAX.to_be_bytes()).as_deref(), Some("infinity"));
        assert_eq!(
            decoded(Type::TIMESTAMPTZ, &i64::MIN.to_be_bytes()).as_deref(),
            Some("-infinity")
        );
        let days = |n: i32| decoded(Type::DATE, &n.to_be_bytes());
        assert_eq!(days(-730_119).as_deref(), Some("0001-01-01"));
        // 0001-12-31 BC and 0044-03-15 BC.
        assert_eq!((days(-730_120), days(-746_110)), (None, None));
        assert_eq!(decoded(Type::TEXT, "é".as_bytes()).as_deref(), Some("é"));
        assert_eq!((decoded(Type::TEXT, &[0xe9]), decoded(Type::JSONB, &[1, 0xe9])), (None, None));
    }

    #[test]
    fn an_array_of_huge_numbers_is_truncated() {
        let element = wire(&[1, 32_767, 0, 0, 1]);
        let mut raw: Vec<u8> =
            [1, 0, 1700, 100_000, 1].iter().flat_map(|n: &i32| n.to_be_bytes()).collect();
        for _ in 0..100_000 {
            raw.extend(10_i32.to_be_bytes());
            raw.extend(&element);
        }
        let text = value(&Type::NUMERIC_ARRAY, &raw).unwrap();
        assert!(text.starts_with("{1000") && text.len() < 150_000, "{} bytes", text.len());
    }

    #[test]
    fn decoding_ends_for_too_many_dimensions_and_for_empty_dimensions() {
        let dims = |count: i32, length: i32| -> Vec<u8> {
            let head = [count, 0, 23];
            let each = [length, 1].into_iter().cycle().take(2 * count.unsigned_abs() as usize);
            head.into_iter().chain(each).flat_map(i32::to_be_bytes).collect()
        };
        assert_eq!(value(&Type::INT4_ARRAY, &dims(100_000, 1)), None);
        let mut endless = dims(2, i32::MAX);
        endless[20..24].copy_from_slice(&[0; 4]);
        assert!(value(&Type::INT4_ARRAY, &endless).unwrap().len() < 2 * MAX_ARRAY_BYTES);
    }

    #[test]
    fn a_malformed_array_does_not_panic() {
        let wire: Vec<u8> =
            [2, 0, 23, 2, 1, 1, 1, 4, 7].iter().flat_map(|n: &i32| n.to_be_bytes()).collect();
        assert_eq!(array(&Type::INT4, &wire), None);
        for cut in 0..wire.len() {
            assert_eq!(array(&Type::INT4, &wire[..cut]), None);
        }
    }
}
