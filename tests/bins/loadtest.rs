//! The load test, built together with the tests.
fn main() -> std::process::ExitCode {
    loadtest::main()
}
