//! Notifies the service manager in the sd_notify protocol, with datagrams to the socket in
//! `NOTIFY_SOCKET`. Without that variable, nothing is sent.
//!
//! Invariant: the watchdog must not kill a worker because the database does not answer. Every
//! attempt to send a heartbeat, successful or not, takes a bounded time and ends with a watchdog
//! message.
//!
//! This file has its own code for the socket, because the crate sd-notify 0.5 has three faults. If
//! a hung manager does not read, it blocks without limit in the twelfth message. It takes abstract
//! addresses (`@…`) for paths. It cannot announce a shutdown of more than 71 minutes.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// Time limit for a send while the manager's queue is full. The worker must not wait longer.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// Time that is added to the announced duration of the shutdown.
const STOP_MARGIN: Duration = Duration::from_secs(15);

/// Connection to the service manager, if there is one.
#[derive(Clone, Default)]
pub(crate) struct SdNotify {
    socket: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// If no watchdog message arrives within this time, the manager kills the process.
    watchdog: Option<Duration>,
}

impl SdNotify {
    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    #[expect(clippy::disallowed_methods, reason = "protocol of the service manager, not settings")]
    pub(crate) fn from_environment() -> Self {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
            return Self::default();
        };
        let socket = match connect(&path) {
            Ok(socket) => Some(Arc::new(socket)),
            Err(error) => {
                tracing::warn!(?path, %error, "cannot notify the service manager");
                None
            }
        };
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let meant = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|_| meant).map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// Warns if a heartbeat attempt may take longer than the watchdog timeout.
    pub(crate) fn warn_if_watchdog_is_short(&self, longest: Duration) {
        if let Some(watchdog) = self.watchdog.filter(|watchdog| *watchdog <= longest) {
            tracing::warn!(
                ?watchdog,
                ?longest,
                "watchdog timeout is too short: a healthy worker may send no message for longer"
            );
        }
    }

    /// Reports that the worker claims tasks.
    pub(crate) fn ready(&self, readers: u32) {
        self.send(&format!("READY=1\nSTATUS={readers} readers"));
    }

    /// Reports that the worker is alive.
    pub(crate) fn alive(&self, status: &str) {
        self.send(&format!("WATCHDOG=1\nSTATUS={status}"));
    }

    /// Reports that the worker drains and will end within `patience`.
    pub(crate) fn stopping(&self, running: usize, patience: Duration) {
        let micros = (patience + STOP_MARGIN).as_micros();
        let tasks = if running == 1 { "task" } else { "tasks" };
        self.send(&format!(
            "STOPPING=1\nSTATUS=draining, {running} {tasks} running\nEXTEND_TIMEOUT_USEC={micros}"
        ));
    }

    fn send(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        let (socket, address) = &**socket;
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::debug!(%error, "could not notify the service manager");
        }
    }
}

/// Returns an unbound socket and the manager's address.
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
