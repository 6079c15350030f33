//! The program `pgmill`.

fn main() -> std::process::ExitCode {
    pgmill::main()
}
