//! The worker program; the library has it all.
fn main() -> std::process::ExitCode {
    worker::main()
}
