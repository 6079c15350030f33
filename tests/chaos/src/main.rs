//! The program `chaos`.

fn main() -> std::process::ExitCode {
    chaos::main()
}
