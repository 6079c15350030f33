//! What the service manager is told: datagrams to the socket that `NOTIFY_SOCKET` names, as systemd
//! and some others understand them. Without that variable nobody is told anything.
//!
//! Invariant: a database that does not answer is no reason to be ended. Whether the loops of this process turn
//! is said at the end of every attempt to beat, however it went, and no attempt takes longer than a bound.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// The manager's queue may be full; the worker has other things to do than to wait for long.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// Told of the stop on top of what the stop may take.
const STOP_MARGIN: Duration = Duration::from_secs(15);

/// Whoever started this process and wants to hear of it.
#[derive(Clone, Default)]
pub(crate) struct SdNotify {
    socket: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// It ends the process if it hears nothing for so long.
    watchdog: Option<Duration>,
}

impl SdNotify {
    /// As the environment says.
    #[expect(clippy::disallowed_methods, reason = "no settings, but the manager's own protocol")]
    pub(crate) fn from_environment() -> Self {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
            return Self::default();
        };
        let socket = match connect(&path) {
            Ok(socket) => Some(Arc::new(socket)),
            Err(error) => {
                tracing::warn!(?path, %error, "cannot tell the service manager anything");
                None
            }
        };
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let meant = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|_| meant).map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// Warns if an attempt to beat may take longer than the watchdog waits.
    pub(crate) fn warn_if_watchdog_is_short(&self, longest: Duration) {
        if let Some(watchdog) = self.watchdog.filter(|watchdog| *watchdog <= longest) {
            tracing::warn!(
                ?watchdog,
                ?longest,
                "the watchdog is impatient: this worker may be well and say nothing for longer"
            );
        }
    }

    /// It claims from now on.
    pub(crate) fn ready(&self, readers: u32) {
        self.send(&format!("READY=1\nSTATUS={readers} readers"));
    }

    /// Its loops turn.
    pub(crate) fn alive(&self, status: &str) {
        self.send(&format!("WATCHDOG=1\nSTATUS={status}"));
    }

    /// It claims no more, and will have ended after `patience`.
    pub(crate) fn stopping(&self, running: usize, patience: Duration) {
        let micros = (patience + STOP_MARGIN).as_micros();
        self.send(&format!(
            "STOPPING=1\nSTATUS=draining, {running} tasks running\nEXTEND_TIMEOUT_USEC={micros}"
        ));
    }

    fn send(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        let (socket, address) = &**socket;
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::debug!(%error, "the service manager was not told");
        }
    }
}

/// A socket of one's own, and where to send.
fn connect(path: &OsString) -> io::Result<(UnixDatagram, SocketAddr)> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    Ok((socket, address(path)?))
}

#[cfg(target_os = "linux")]
fn address(path: &OsString) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    }
}

#[cfg(not(target_os = "linux"))]
fn address(path: &OsString) -> io::Result<SocketAddr> {
    SocketAddr::from_pathname(path)
}
