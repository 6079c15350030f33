//! The checks of deploy/; the library has it all.
fn main() -> std::process::ExitCode {
    deploy::main()
}
