//! The worker, built together with the tests.

use rustix::process::{Signal, set_parent_process_death_signal};

fn main() -> std::process::ExitCode {
    // A run of the tests that is killed leaves no workers behind.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    pgmill_worker::main()
}
