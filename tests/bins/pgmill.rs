//! The program `pgmill`, built along with the tests.
fn main() -> std::process::ExitCode {
    pgmill::main()
}
