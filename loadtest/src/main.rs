//! Entry point of the load test; the implementation is in the library.
fn main() -> std::process::ExitCode {
    loadtest::main()
}
