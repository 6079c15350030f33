//! The program `enqueue`.

fn main() -> std::process::ExitCode {
    enqueue::main()
}
