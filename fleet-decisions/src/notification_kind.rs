//! Decides what a notification of the database asks a worker for.

/// What a worker does after a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationKind {
    /// Claim, because there may be new tasks.
    Tasks,
    /// Sweep, because there may be tasks below the watermarks.
    Sweep,
    /// Send a heartbeat, whose response has news.
    Heartbeat,
}

impl NotificationKind {
    /// Returns what the payload of a NOTIFY asks for.
    #[must_use]
    pub fn of_payload(payload: &str) -> Self {
        match payload {
            "sweep" => Self::Sweep,
            "cancel" | "heartbeat" => Self::Heartbeat,
            _ => Self::Tasks,
        }
    }
}
