//! The `cluster` program; all of it is in the library.

fn main() -> std::process::ExitCode {
    cluster::main()
}
