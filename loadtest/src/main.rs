//! The load test; the library has it all.
fn main() -> std::process::ExitCode {
    loadtest::main()
}
