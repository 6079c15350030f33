//! The worker, built along with the tests.
fn main() -> std::process::ExitCode {
    worker::main()
}
