//! The program `enqueue`, built along with the tests.
fn main() -> std::process::ExitCode {
    enqueue::main()
}
