//! A program on a pseudo-terminal, with the resulting screen content.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::eventually;

const LINES: NonZero<u16> = NonZero::new(24).unwrap();
const COLUMNS: NonZero<u16> = NonZero::new(80).unwrap();

/// A running program and its screen of 80 columns and 24 lines.
pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: Option<thread::JoinHandle<()>>,
}

impl Terminal {
    /// Starts the command on a new terminal.
    pub(crate) fn start(command: Command) -> Self {
        Self::reporting(COLUMNS.get(), command)
    }

    /// Starts the command on a new terminal that reports this width to it; 0: the terminal does not
    /// know its width.
    pub(crate) fn reporting(columns: u16, mut command: Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let side = File::from(open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap());
        let size = Winsize { ws_row: LINES.get(), ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&side, size).unwrap();
        command.env("TERM", "xterm").env_remove("NO_COLOR");
        command.stdin(side.try_clone().unwrap()).stdout(side.try_clone().unwrap()).stderr(side);
        let child = command.spawn().unwrap();
        // The command holds the program's side of the terminal open. Without the drop, the reader
        // below would not end.
        drop(command);
        let keyboard = File::from(master);
        let mut output = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(LINES, COLUMNS, 0)));
        let shown = Arc::clone(&screen);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The read fails when the other side is closed.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().process(&bytes[..count]);
            }
        });
        Self { child, keyboard, screen, reader: Some(reader) }
    }

    /// Returns the visible text.
    pub(crate) fn text(&self) -> String {
        self.screen.lock().screen().contents()
    }

    /// Returns whether any cell is coloured.
    pub(crate) fn coloured(&self) -> bool {
        let parser = self.screen.lock();
        let screen = parser.screen();
        (0..LINES.get())
            .flat_map(|row| (0..COLUMNS.get()).map(move |column| (row, column)))
            .filter_map(|(row, column)| screen.cell(row, column))
            .any(|cell| cell.fgcolor() != vt100::Color::Default)
    }

    /// Returns whether the program uses the alternate screen, as editors do.
    pub(crate) fn in_alternate_screen(&self) -> bool {
        self.screen.lock().screen().alternate_screen()
    }

    /// Types keys.
    pub(crate) fn type_keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this text is visible.
    pub(crate) async fn until_shown(&self, text: &str) {
        let shown = async || self.text().contains(text);
        eventually(&format!("{text:?} on\n{}", self.text()), shown).await;
    }

    /// Waits until the program has ended, and for all of its output.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the program ends", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        self.reader.take().unwrap().join().unwrap();
        status.unwrap()
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A program that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
