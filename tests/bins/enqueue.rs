//! The program `enqueue`, built together with the tests.
fn main() -> std::process::ExitCode {
    enqueue::main()
}
