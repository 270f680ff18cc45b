//! The program `vramshim`.

fn main() -> std::process::ExitCode {
    program::main()
}
