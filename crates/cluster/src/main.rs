//! Entry point of the `cluster` program; the implementation is in the library.

fn main() -> std::process::ExitCode {
    cluster::main()
}
