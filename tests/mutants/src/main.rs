//! The program `mutants`.

fn main() -> std::process::ExitCode {
    mutants::main()
}
