//! The program `ha`.

fn main() -> std::process::ExitCode {
    ha::main()
}
