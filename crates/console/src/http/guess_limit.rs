//! Limit of wrong tokens per client, so that tokens cannot be guessed.
//!
//! After [`FREE_GUESSES`] different wrong tokens, each further one locks the client for twice as long
//! as the one before, up to a minute. While a client is locked, its tokens are not examined, because
//! an answer would tell a guesser that the token is right. The same wrong token again is not a
//! guess: a program with an outdated token does not lock other programs on its machine.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use http_server::client_network;
use parking_lot::Mutex;

/// Number of different wrong tokens without a lock, for people who mistype.
const FREE_GUESSES: u32 = 10;

/// Duration of the first lock.
const FIRST_LOCK: Duration = Duration::from_secs(1);

/// Longest lock: a guesser has 1,440 guesses a day. A longer lock would keep people out who share
/// the address of a guesser.
const MAX_LOCK: Duration = Duration::from_secs(60);

/// Time without a wrong token after which a client starts anew.
const FORGET_AFTER: Duration = Duration::from_secs(15 * 60);

/// Maximum number of clients, about 1 MB; a further one drops the one that has been quiet the
/// longest.
const MAX_CLIENTS: usize = 10_000;

/// Wrong tokens by client.
pub(crate) struct GuessLimit {
    hasher: RandomState,
    clients: Mutex<HashMap<IpAddr, Guesses>>,
}

struct Guesses {
    wrong: u32,
    /// Hash of the last wrong token.
    last_token: u64,
    last_at: Instant,
    locked_until: Instant,
}

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenRefusal {
    /// The token is unknown.
    Wrong,
    /// The client is locked for this long; the token was not examined.
    Locked(Duration),
}

impl GuessLimit {
    pub(crate) fn new() -> Self {
        Self { hasher: RandomState::new(), clients: Mutex::default() }
    }

    /// Returns what `find` finds for the token, unless the client is locked.
    pub(crate) fn examine<T>(
        &self,
        (client, token): (IpAddr, &str),
        now: Instant,
        find: impl FnOnce() -> Option<T>,
    ) -> Result<T, TokenRefusal> {
        let client = client_network(client);
        // Held during the comparison, so that requests at the same time count one after the other.
        let mut clients = self.clients.lock();
        let known = clients.get(&client).filter(|it| now - it.last_at < FORGET_AFTER);
        if let Some(left) = known.and_then(|it| it.locked_until.checked_duration_since(now))
            && !left.is_zero()
        {
            return Err(TokenRefusal::Locked(left));
        }
        if let Some(found) = find() {
            return Ok(found);
        }
        let last_token = self.hasher.hash_one(token);
        if known.is_none_or(|it| it.last_token != last_token) {
            let wrong = known.map_or(0, |it| it.wrong) + 1;
            let locked_until = now + lock_after(wrong);
            clients.insert(client, Guesses { wrong, last_token, last_at: now, locked_until });
        }
        if clients.len() > MAX_CLIENTS
            && let Some(quiet) = clients.iter().min_by_key(|(_, it)| it.last_at).map(|it| *it.0)
        {
            clients.remove(&quiet);
        }
        Err(TokenRefusal::Wrong)
    }
}

/// Returns the duration of the lock after this number of wrong tokens.
fn lock_after(wrong: u32) -> Duration {
    match wrong.checked_sub(FREE_GUESSES + 1) {
        None => Duration::ZERO,
        Some(doublings) => (FIRST_LOCK * 2_u32.pow(doublings.min(16))).min(MAX_LOCK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(limit: &GuessLimit, client: &str, token: &str, now: Instant) -> TokenRefusal {
        limit.examine((client.parse().unwrap(), token), now, || None::<()>).unwrap_err()
    }

    #[test]
    fn a_guesser_has_ten_guesses_then_one_a_minute() {
        let (limit, begin) = (GuessLimit::new(), Instant::now());
        let mut now = begin;
        let mut examined = 0;
        while now - begin < Duration::from_secs(24 * 3600) {
            match guess(&limit, "192.0.2.1", &format!("guess {examined}"), now) {
                TokenRefusal::Wrong => examined += 1,
                TokenRefusal::Locked(left) => now += left,
            }
        }
        assert!((1400..1460).contains(&examined), "{examined} guesses a day");
        let found = |client: &str| limit.examine((client.parse().unwrap(), "x"), now, || Some(1));
        assert_eq!(found("192.0.2.2"), Ok(1), "another client");
        guess(&limit, "192.0.2.1", "one more", now);
        assert!(matches!(found("192.0.2.1"), Err(TokenRefusal::Locked(_))), "the right token");
        now += MAX_LOCK;
        let found = |client: &str| limit.examine((client.parse().unwrap(), "x"), now, || Some(1));
        assert_eq!(found("192.0.2.1"), Ok(1), "after the lock");
    }

    #[test]
    fn a_program_with_an_outdated_token_locks_nobody() {
        let (limit, now) = (GuessLimit::new(), Instant::now());
        for _ in 0..1000 {
            assert_eq!(guess(&limit, "192.0.2.1", "outdated", now), TokenRefusal::Wrong);
        }
    }

    #[test]
    fn a_client_starts_anew_and_the_number_of_clients_is_bounded() {
        let (limit, mut now) = (GuessLimit::new(), Instant::now());
        for n in 0..=FREE_GUESSES {
            guess(&limit, "2001:db8::1", &n.to_string(), now);
        }
        // The same network.
        let refusal = guess(&limit, "2001:db8::2", "x", now);
        assert!(matches!(refusal, TokenRefusal::Locked(_)), "{refusal:?}");
        now += FORGET_AFTER;
        for n in 0..FREE_GUESSES {
            assert_eq!(guess(&limit, "2001:db8::1", &n.to_string(), now), TokenRefusal::Wrong);
        }
        for n in 0..MAX_CLIENTS + 100 {
            let client = IpAddr::from(u32::try_from(n).unwrap().to_be_bytes());
            guess(&limit, &client.to_string(), "x", now + Duration::from_secs(1));
        }
        assert_eq!(limit.clients.lock().len(), MAX_CLIENTS);
    }
}
