//! All settings of a connection. Each setting comes from the first of these sources that has it:
//! the connection string, the service file, the `PG*` variables. libpq uses the same order
//! (`conninfo_add_defaults`).

use crate::error::ConnectError;
use crate::origin::Origin;
use crate::parse::environment::Environment;
use crate::parse::key_value;
use crate::parse::keyword::{KEYWORDS, Treatment};
use crate::parse::service;
use crate::parse::uri;
use std::collections::BTreeMap;

struct Setting {
    value: String,
    origin: Origin,
}

/// Maps each keyword to its value. A keyword that no source sets is absent. An empty value counts
/// as set.
#[derive(Default)]
pub(crate) struct Settings {
    values: BTreeMap<&'static str, Setting>,
    pub(crate) warnings: Vec<String>,
}

impl Settings {
    pub(crate) fn collect(text: Option<&str>, env: &Environment) -> Result<Self, ConnectError> {
        let mut settings = Self::default();
        for name in env.not_utf8() {
            settings.warnings.push(format!("variable {name} is not valid UTF-8: ignored"));
        }
        for (keyword, value) in key_value::parse(text.unwrap_or_default())? {
            let origin = Origin::ConnectionString;
            settings.values.insert(keyword, Setting { value, origin });
        }
        settings.fill_from_service(env)?;
        settings.fill_from_variables(env);
        settings.validate()?;
        Ok(settings)
    }

    fn fill_from_service(&mut self, env: &Environment) -> Result<(), ConnectError> {
        let Some(service) = self.get("service").or_else(|| env.variable("PGSERVICE")) else {
            return Ok(());
        };
        let file = self.get("servicefile").or_else(|| env.variable("PGSERVICEFILE"));
        for (keyword, value) in service::load(service, file, env)? {
            let origin = Origin::ServiceFile;
            self.values.entry(keyword).or_insert(Setting { value, origin });
        }
        Ok(())
    }

    fn fill_from_variables(&mut self, env: &Environment) {
        for keyword in KEYWORDS {
            if let Some(variable) = keyword.variable
                && let Some(value) = env.variable(variable)
            {
                let origin = Origin::Variable(variable);
                let value = value.to_owned();
                self.values.entry(keyword.name).or_insert(Setting { value, origin });
            }
        }
    }

    /// Refuses options that are not supported and a URI in place of the database name, which is shown in
    /// messages, and warns about options that are ignored.
    fn validate(&mut self) -> Result<(), ConnectError> {
        if self.get("dbname").is_some_and(uri::has_scheme) {
            return Err(self.invalid("dbname", "must be the name of a database, not a URI"));
        }
        for keyword in KEYWORDS {
            let Some(Setting { value, origin }) = self.values.get(keyword.name) else { continue };
            match keyword.treatment {
                Treatment::Refused { unless, reason }
                    if !value.is_empty() && !unless.contains(&value.as_str()) =>
                {
                    return Err(ConnectError::UnsupportedKeyword {
                        keyword: keyword.name,
                        origin: *origin,
                        reason,
                    });
                }
                Treatment::IgnoredWithWarning => {
                    self.warnings.push(format!("option \"{}\" has no effect here", keyword.name));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the value, even if it is empty.
    pub(crate) fn get(&self, keyword: &str) -> Option<&str> {
        self.values.get(keyword).map(|setting| setting.value.as_str())
    }

    /// Returns the value, unless it is empty.
    pub(crate) fn filled(&self, keyword: &str) -> Option<&str> {
        self.get(keyword).filter(|value| !value.is_empty())
    }

    /// Returns whether the connection string itself sets this keyword.
    pub(crate) fn inline(&self, keyword: &str) -> bool {
        self.values.get(keyword).is_some_and(|s| s.origin == Origin::ConnectionString)
    }

    /// Returns the error for an invalid value of `keyword`, which must be set.
    pub(crate) fn invalid(
        &self,
        keyword: &'static str,
        problem: impl Into<String>,
    ) -> ConnectError {
        let origin = self.values.get(keyword).map_or(Origin::ConnectionString, |s| s.origin);
        ConnectError::InvalidValue { keyword, origin, problem: problem.into() }
    }

    /// Parses a value that must be one of the given words. Returns the first of them if the keyword
    /// is not set.
    pub(crate) fn choice<T: Copy>(
        &self,
        keyword: &'static str,
        choices: &[(&str, T)],
    ) -> Result<T, ConnectError> {
        let Some(value) = self.get(keyword) else { return Ok(choices[0].1) };
        choices.iter().find(|(word, _)| *word == value).map(|(_, choice)| *choice).ok_or_else(
            || {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                self.invalid(keyword, format!("must be one of {}", words.join(", ")))
            },
        )
    }

    /// Parses an integer.
    pub(crate) fn integer(&self, keyword: &'static str) -> Result<Option<i32>, ConnectError> {
        self.get(keyword)
            .map(|value| {
                value.trim_ascii().parse().map_err(|_| self.invalid(keyword, "must be an integer"))
            })
            .transpose()
    }
}
