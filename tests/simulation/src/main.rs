//! The program `simulation`.

fn main() -> std::process::ExitCode {
    simulation::main()
}
