//! The load test, built along with the tests.
fn main() -> std::process::ExitCode {
    loadtest::main()
}
