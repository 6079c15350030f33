//! The worker program; all code is in the library.
fn main() -> std::process::ExitCode {
    pgmill_worker::main()
}
