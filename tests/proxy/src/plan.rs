//! The armed fault: one at a time, for all connections of a proxy.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The message does not arrive. The server sees the connection close.
    Before,
    /// The message arrives, but its reply does not. The server sees the connection close.
    After,
    /// The message arrives, but its reply does not. The server does not see the connection close,
    /// as if the network dropped all packets.
    Unseen,
    /// As `Unseen`, but the message does not arrive either.
    UnseenBefore,
}

/// Damage to one byte of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Number of the message in the answer, from 0.
    pub message: usize,
    /// Number of the byte in the message, from 0. Byte 0 is the type, bytes 1 to 4 are the length.
    pub byte: usize,
    /// What happens to the byte.
    pub kind: DamageKind,
}

/// What happens to the byte of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// Nothing. The sizes of the messages are recorded.
    None,
    /// These bits of the byte are flipped.
    Flip(u8),
    /// The byte and all later ones do not arrive. Both sides see the connection close.
    Truncate,
}

/// Action on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// Cuts the session.
    Cut(Cut),
    /// Holds the message, and all later messages of its session, until released.
    Hold,
    /// Forwards the message and holds its reply until released.
    HoldAnswer,
    /// Forwards the message and damages its reply.
    DamageAnswer(Damage),
    /// Replaces the simple query by one that fails at once, as if a late cancel request hit it.
    Fail,
}

/// Selects a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageMatch {
    /// The n-th message from now on, counted from 1.
    Message(u32),
    /// The next startup message.
    Startup,
    /// The next execution of a prepared statement.
    Prepared,
    /// The first message that contains this text. The action takes effect after the whole pipeline:
    /// a statement with parameters consists of several messages and executes at the last one.
    Text(String),
}

/// A damage to the answer of a message that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArmedDamage {
    pub(crate) damage: Damage,
    at: MessageMatch,
    round: u32,
}

#[cfg(test)]
impl From<Damage> for ArmedDamage {
    fn from(damage: Damage) -> Self {
        Self { damage, at: MessageMatch::Startup, round: 0 }
    }
}

/// Action selected for a received message.
pub(crate) struct Matched {
    pub(crate) at: MessageMatch,
    pub(crate) act: FaultAction,
    /// Act only at the last message of the pipeline.
    pub(crate) whole_pipeline: bool,
}

/// State shared by all connections.
pub(crate) struct Shared {
    upstream: watch::Sender<String>,
    plan: Mutex<Plan>,
    fired: watch::Sender<bool>,
    /// Number of releases so far, and whether the held message passes. A holder waits for the next
    /// number.
    released: watch::Sender<(u32, bool)>,
    /// Number of the current round. A new round drops the connections of earlier rounds that the
    /// server still keeps.
    pub(crate) round: watch::Sender<u32>,
    pub(crate) delay: watch::Sender<Duration>,
    /// Sizes and types of the messages of the answer that was recorded last.
    recorded: Mutex<Vec<(char, usize)>>,
}

#[derive(Default)]
struct Plan {
    armed: Option<(MessageMatch, FaultAction)>,
}

impl Shared {
    pub(crate) fn new(upstream: String) -> Self {
        Self {
            upstream: watch::Sender::new(upstream),
            plan: Mutex::default(),
            fired: watch::Sender::new(false),
            released: watch::Sender::new((0, true)),
            round: watch::Sender::new(0),
            delay: watch::Sender::new(Duration::ZERO),
            recorded: Mutex::default(),
        }
    }

    /// Returns the address for new connections.
    pub(crate) fn upstream(&self) -> String {
        self.upstream.borrow().clone()
    }

    pub(crate) fn set_upstream(&self, upstream: &str) {
        self.upstream.send_replace(upstream.to_owned());
    }

    pub(crate) fn arm(&self, at: MessageMatch, act: FaultAction) {
        self.fired.send_replace(false);
        self.plan().armed = Some((at, act));
    }

    pub(crate) async fn fired(&self) {
        // The sender is in self: the wait cannot fail.
        let _ = self.fired.subscribe().wait_for(|fired| *fired).await;
    }

    pub(crate) fn release(&self, pass: bool) {
        self.released.send_modify(|(count, passes)| (*count, *passes) = (*count + 1, pass));
    }

    pub(crate) fn disarm(&self) -> bool {
        self.plan().armed = None;
        self.round.send_modify(|round| *round += 1);
        self.fired.send_replace(false)
    }

    pub(crate) fn delay(&self, by: Duration) {
        self.delay.send_replace(by);
    }

    /// Returns the damage to the answer of a startup message, if there is any.
    pub(crate) fn match_startup(&self) -> Option<ArmedDamage> {
        let mut plan = self.plan();
        match plan.armed {
            Some((MessageMatch::Startup, FaultAction::DamageAnswer(damage))) => {
                plan.armed = None;
                Some(self.armed_damage(MessageMatch::Startup, damage))
            }
            _ => None,
        }
    }

    /// Returns the damage to the answer of a message that matched `at`.
    pub(crate) fn armed_damage(&self, at: MessageMatch, damage: Damage) -> ArmedDamage {
        ArmedDamage { damage, at, round: *self.round.borrow() }
    }

    /// Returns whether the damage has not been disarmed.
    pub(crate) fn is_armed(&self, armed: &ArmedDamage) -> bool {
        armed.round == *self.round.borrow()
    }

    /// Arms a damage again whose answer ended before the damaged byte, for example because the server
    /// closed the session.
    pub(crate) fn arm_again(&self, armed: ArmedDamage) {
        let mut plan = self.plan();
        if self.is_armed(&armed) {
            let ArmedDamage { damage, at, .. } = armed;
            plan.armed.get_or_insert((at, FaultAction::DamageAnswer(damage)));
        }
    }

    /// Marks the damage to an answer as occurred, or stores the recorded answer.
    pub(crate) fn answered(&self, recorded: Vec<(char, usize)>) {
        *self.recorded.lock() = recorded;
        self.mark_fired();
    }

    pub(crate) fn recorded(&self) -> Vec<(char, usize)> {
        self.recorded.lock().clone()
    }

    /// Returns the action for a received message; `None` if the message passes.
    pub(crate) fn match_message(&self, message: &[u8]) -> Option<Matched> {
        let mut plan = self.plan();
        let (at, act) = plan.armed.as_mut()?;
        let meant = match at {
            MessageMatch::Message(n) => {
                *n = n.saturating_sub(1);
                *n == 0
            }
            MessageMatch::Startup => false,
            MessageMatch::Prepared => executes_prepared(message),
            MessageMatch::Text(text) => {
                message.windows(text.len().max(1)).any(|part| part == text.as_bytes())
            }
        };
        if !meant {
            return None;
        }
        let before = matches!(
            act,
            FaultAction::Hold
                | FaultAction::Cut(Cut::Before | Cut::UnseenBefore)
                | FaultAction::DamageAnswer(_)
                | FaultAction::Fail
        );
        let whole_pipeline = matches!(at, MessageMatch::Text(_)) && !before;
        let matched = Matched { at: at.clone(), act: *act, whole_pipeline };
        plan.armed = None;
        Some(matched)
    }

    /// Waits for the next release; returns whether the held message passes.
    pub(crate) async fn wait_for_release(&self) -> bool {
        let mut released = self.released.subscribe();
        let (before, _) = *released.borrow_and_update();
        self.mark_fired();
        match released.wait_for(|(count, _)| *count != before).await {
            Ok(now) => now.1,
            Err(_) => false,
        }
    }

    /// Marks the fault as occurred.
    pub(crate) fn mark_fired(&self) {
        self.fired.send_replace(true);
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock()
    }
}

/// Returns whether the message binds parameters to a prepared statement that has a name.
fn executes_prepared(message: &[u8]) -> bool {
    // The type, the length, and the names of the portal and of the statement.
    matches!(message, [b'B', _, _, _, _, 0, name, ..] if *name != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damage_that_did_not_occur_is_armed_again_unless_it_was_disarmed() {
        let shared = Shared::new(String::new());
        let matched = || match shared.match_message(b"LISTEN")? {
            Matched { at, act: FaultAction::DamageAnswer(damage), .. } => {
                Some(shared.armed_damage(at, damage))
            }
            _ => None,
        };
        let damage = Damage { message: 1, byte: 0, kind: DamageKind::Truncate };
        let at = MessageMatch::Text("LISTEN".to_owned());
        shared.arm(at, FaultAction::DamageAnswer(damage));
        let first = matched().unwrap();
        assert_eq!(matched(), None);
        shared.arm_again(first);
        let second = matched().unwrap();
        shared.disarm();
        shared.arm_again(second);
        assert_eq!(matched(), None);
    }
}
