//! Name and colour of the environment, which every page shows, so that nobody takes one environment
//! for another.

use clap::ValueEnum;

/// Maximum length of a name, in characters.
const MAX_NAME_CHARS: usize = 30;

/// Colour of an environment in the header. Each has a contrast of at least 4.5 with its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EnvironmentColor {
    /// White on red.
    Red,
    /// White on orange.
    Orange,
    /// Black on yellow.
    Yellow,
    /// White on green.
    Green,
    /// White on blue.
    Blue,
    /// White on purple.
    Purple,
    /// White on gray.
    #[default]
    Gray,
}

/// An environment, such as `prod`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The name.
    pub name: String,
    /// The colour.
    pub color: EnvironmentColor,
}

impl Environment {
    /// Returns the CSS class of the colour.
    pub(crate) fn class(&self) -> String {
        format!("env-{:?}", self.color).to_lowercase()
    }
}

/// Parses the name of an environment.
///
/// # Errors
/// Returns a message if the name is empty or too long.
pub fn environment_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    if name.is_empty() || name.chars().count() > MAX_NAME_CHARS {
        return Err(format!("must have 1 to {MAX_NAME_CHARS} characters"));
    }
    Ok(name.to_owned())
}
