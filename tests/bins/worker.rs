//! The worker, built together with the tests.
fn main() -> std::process::ExitCode {
    worker::main()
}
