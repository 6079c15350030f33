//! An HTTP receiver of other content than notifications, such as traces.

use bytes::Bytes;
use tokio::time::timeout;

use crate::destination::{TIMEOUT, late};
use crate::error::{SendError, SettingsError};
use crate::http::{self, Request};
use crate::settings::HttpSettings;

/// An HTTP receiver whose settings are valid.
#[derive(Debug)]
pub struct Endpoint {
    settings: HttpSettings,
    content_type: &'static str,
}

impl Endpoint {
    /// Checks the settings, and reads their files once. `content_type`: of the contents.
    ///
    /// # Errors
    /// A setting is missing or invalid, or a file cannot be read.
    pub fn open(settings: HttpSettings, content_type: &'static str) -> Result<Self, SettingsError> {
        http::check(&settings, None)?;
        Ok(Self { settings, content_type })
    }

    /// Sends the content once, within ten seconds.
    ///
    /// # Errors
    /// The receiver did not confirm the content. It may have arrived nevertheless.
    pub async fn send(&self, content: Bytes) -> Result<(), SendError> {
        let request =
            Request { default_url: None, content, content_type: self.content_type, id: None };
        timeout(TIMEOUT, http::post(&self.settings, request)).await.map_err(late)?
    }
}
