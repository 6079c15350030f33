//! Formats of messages, one file per receiver.
//!
//! | format | file |
//! |---|---|
//! | message with a coloured attachment, also for Mattermost and Rocket.Chat | `slack` |
//! | message with an adaptive card for Microsoft Teams | `teams` |
//! | event that triggers or resolves an incident | `pagerduty` |
//! | alert with labels, which the end of a problem ends | `alertmanager` |

pub(crate) mod alertmanager;
pub(crate) mod pagerduty;
pub(crate) mod slack;
pub(crate) mod teams;
