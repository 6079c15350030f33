//! The worker, built together with the tests.
fn main() -> std::process::ExitCode {
    pgmill_worker::main()
}
