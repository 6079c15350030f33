//! The demo; the library has it all.
fn main() -> std::process::ExitCode {
    demo::main()
}
