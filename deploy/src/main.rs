//! Entry point of the checks of deploy/; the implementation is in the library.
fn main() -> std::process::ExitCode {
    deploy::main()
}
