//! Entry point of the demo; the implementation is in the library.
fn main() -> std::process::ExitCode {
    demo::main()
}
