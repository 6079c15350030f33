//! Which readers have a session, and why the others have none. The heartbeat reports it, so that the
//! fleet's status shows a login that cannot connect. Its answer names logins that have become superusers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use queue::heartbeat::UnconnectedReaders;
use tokio::sync::watch;

use crate::control::repeated_errors::shortened;

/// The sessions of all readers of the worker.
#[derive(Clone, Default)]
pub(crate) struct ReaderSessions {
    by_profile: Arc<Mutex<BTreeMap<Arc<str>, LoginSessions>>>,
    superusers: watch::Sender<Superusers>,
}

/// The logins of open sessions that were superusers at the last heartbeat.
#[derive(Default)]
struct Superusers {
    logins: Vec<String>,
    /// Number of heartbeats so far.
    heartbeats: u64,
}

/// The sessions of the readers of one profile.
#[derive(Default)]
struct LoginSessions {
    /// Login of each reader that has a session, by the number of the reader; `None` if it may be a superuser.
    connected: BTreeMap<u32, Option<String>>,
    /// Numbers of the readers whose last try to connect has failed.
    failed: BTreeSet<u32>,
    /// Name of the login, the error of the last failed try, and the start of the failures.
    failure: Option<(String, String, Instant)>,
}

/// Counts a reader as connected until it is dropped.
pub(crate) struct Connected {
    sessions: ReaderSessions,
    profile: Arc<str>,
    number: u32,
    login: Option<String>,
    /// Number of heartbeats before the session was opened.
    heartbeats: u64,
}

impl Connected {
    /// Returns whether the login was a superuser at a heartbeat since the session was opened.
    pub(crate) fn is_superuser(&self) -> bool {
        self.is_among(&self.sessions.superusers.borrow())
    }

    /// Resolves when the login has become a superuser.
    pub(crate) async fn becomes_superuser(&self) {
        let mut superusers = self.sessions.superusers.subscribe();
        // The sender is in `self`, so this cannot fail.
        let _ = superusers.wait_for(|superusers| self.is_among(superusers)).await;
    }

    fn is_among(&self, superusers: &Superusers) -> bool {
        let is_superuser = |login| superusers.logins.contains(login);
        superusers.heartbeats > self.heartbeats && self.login.as_ref().is_some_and(is_superuser)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.sessions.with(&self.profile, |of_login| of_login.connected.remove(&self.number));
    }
}

impl ReaderSessions {
    /// Returns the number of heartbeats so far.
    pub(crate) fn heartbeats(&self) -> u64 {
        self.superusers.borrow().heartbeats
    }

    /// Records that a reader has opened a session. `number`: that of the reader in its profile; `login`:
    /// its login, if this must not be a superuser; `heartbeats`: their number before the session was opened.
    pub(crate) fn connected(
        &self,
        (profile, number): (&Arc<str>, u32),
        login: Option<String>,
        heartbeats: u64,
    ) -> Connected {
        self.with(profile, |of_login| {
            of_login.connected.insert(number, login.clone());
            of_login.failed.remove(&number);
            if of_login.failed.is_empty() {
                of_login.failure = None;
            }
        });
        let profile = Arc::clone(profile);
        Connected { sessions: self.clone(), profile, number, login, heartbeats }
    }

    /// Records that a reader could not open a session, and will try again.
    pub(crate) fn failed(
        &self,
        (profile, number): (&Arc<str>, u32),
        login: &str,
        error: &dyn Display,
    ) {
        self.with(profile, |of_login| {
            of_login.failed.insert(number);
            let since = of_login.failure.take().map_or_else(Instant::now, |(_, _, since)| since);
            of_login.failure = Some((login.to_owned(), shortened(&error.to_string()), since));
        });
    }

    /// Returns the logins with readers that cannot connect. `readers`: number of readers by profile.
    pub(crate) fn report(&self, readers: &BTreeMap<String, u32>) -> Vec<UnconnectedReaders> {
        let of_logins = self.by_profile.lock();
        let failing = of_logins.iter().filter_map(|(profile, of_login)| {
            let (login, error, since) = of_login.failure.as_ref()?;
            Some(UnconnectedReaders {
                profile: profile.to_string(),
                login: login.clone(),
                readers: readers.get(&**profile).copied().unwrap_or_default(),
                connected: u32::try_from(of_login.connected.len()).unwrap_or(u32::MAX),
                failed: u32::try_from(of_login.failed.len()).unwrap_or(u32::MAX),
                error: error.clone(),
                seconds: since.elapsed().as_secs_f64(),
            })
        });
        failing.collect()
    }

    /// Returns the logins of the open sessions that must not be superusers.
    pub(crate) fn logins(&self) -> BTreeSet<String> {
        let of_logins = self.by_profile.lock();
        of_logins
            .values()
            .flat_map(|of_login| of_login.connected.values().flatten().cloned())
            .collect()
    }

    /// Records which of the logins are superusers.
    pub(crate) fn set_superusers(&self, logins: &[String]) {
        self.superusers.send_modify(|superusers| {
            superusers.logins = logins.to_vec();
            superusers.heartbeats += 1;
        });
    }

    fn with<T>(&self, profile: &Arc<str>, access: impl FnOnce(&mut LoginSessions) -> T) -> T {
        access(self.by_profile.lock().entry(Arc::clone(profile)).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_reported_while_one_of_its_readers_cannot_connect() {
        let (sessions, profile) = (ReaderSessions::default(), Arc::from("etl"));
        let readers = BTreeMap::from([("etl".to_owned(), 2)]);
        let state = || {
            let report = sessions.report(&readers);
            report.first().map(|it| (it.connected, it.failed, it.error.clone()))
        };
        let first = sessions.connected((&profile, 1), None, 0);
        assert_eq!(state(), None);
        sessions.failed((&profile, 2), "etl", &"no");
        sessions.failed((&profile, 2), "etl", &"too many connections");
        assert_eq!(state(), Some((1, 1, "too many connections".to_owned())));
        drop(first);
        sessions.failed((&profile, 1), "etl", &"x".repeat(1000));
        assert_eq!(state().map(|(connected, failed, _)| (connected, failed)), Some((0, 2)));
        assert!(state().unwrap().2.len() < 1000);
        let again = [1, 2].map(|number| sessions.connected((&profile, number), None, 0));
        assert_eq!(state(), None);
        drop(again);
    }

    #[test]
    fn a_superuser_is_known_until_a_session_is_opened_later() {
        let (sessions, profile) = (ReaderSessions::default(), Arc::from(""));
        let connect = |number, login: &str| {
            sessions.connected((&profile, number), Some(login.to_owned()), sessions.heartbeats())
        };
        let (before, other) = (connect(1, "etl"), connect(2, "other"));
        assert_eq!(sessions.logins(), ["etl", "other"].map(str::to_owned).into());
        sessions.set_superusers(&["etl".to_owned()]);
        assert!(before.is_superuser() && !other.is_superuser());
        let after = connect(3, "etl");
        assert!(!after.is_superuser());
    }
}
