//! HTTP below the screens: what happens before a handler, and what all handlers share.
//!
//! | task | file |
//! |---|---|
//! | certificate and key, read again when their files change | `tls` |
//! | checks of host, origin and user before every handler; security headers | `access_check` |
//! | tokens, users of a proxy, signed-in sessions, allowed hosts | `access_control` |
//! | lock of a client that sends many wrong tokens | `guess_limit` |
//! | sign-in with a token, and sign-out | `login` |
//! | limit of the memory that bodies of requests use | `body_limit` |
//! | state of all handlers of one database; entries of the navigation | `app` |
//! | user, path and database session of a request; submitted forms | `request` |
//! | time zone of the browser, from a cookie | `time_zone` |
//! | POST requests of the API: JSON body, scope, idempotency key, transaction | `api_request` |
//! | JSON responses, with a value or with an error | `json` |
//! | lists as CSV or JSON files, streamed page by page | `download` |
//! | errors as an HTML page or as JSON | `error_response` |
//! | embedded scripts and styles, with an entity tag | `assets` |

pub(crate) mod access_check;
pub(crate) mod access_control;
pub(crate) mod api_request;
pub(crate) mod app;
pub(crate) mod assets;
pub(crate) mod body_limit;
pub(crate) mod download;
pub(crate) mod error_response;
mod guess_limit;
pub(crate) mod json;
pub(crate) mod login;
pub(crate) mod request;
mod time_zone;
pub(crate) mod tls;
