//! The rules of the schema for names, with which a program refuses invalid names before it
//! connects.

/// Checks a queue name.
///
/// # Errors
/// Returns the violated rule.
pub fn queue_name(text: &str) -> Result<String, &'static str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    if (1..=128).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err("a queue name must have 1 to 128 letters, digits or any of _ . : -")
}

/// Checks a name of another kind, or a key.
///
/// # Errors
/// Returns the violated rule.
pub fn label(text: &str) -> Result<String, String> {
    match text.len() {
        1..=512 => Ok(text.to_owned()),
        bytes => Err(format!("must have 1 to 512 bytes, not {bytes}")),
    }
}
