//! What the schema takes as a name, so that a program refuses the rest before it connects.

/// A queue's name.
///
/// # Errors
/// The rule that it breaks.
pub fn queue_name(text: &str) -> Result<String, &'static str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    if (1..=128).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err("a queue's name is 1 to 128 letters, digits or any of _ . : -")
}

/// The name of anything else, or a key.
///
/// # Errors
/// The rule that it breaks.
pub fn label(text: &str) -> Result<String, String> {
    match text.len() {
        1..=512 => Ok(text.to_owned()),
        bytes => Err(format!("it has {bytes} bytes, not 1 to 512")),
    }
}
