//! The program `pgmill`, built together with the tests.
fn main() -> std::process::ExitCode {
    pgmill::main()
}
