//! The program `vramshim`: starts jobs under the library and reads what it wrote.

mod analysis;
mod cli;
mod replay;

fn main() -> std::process::ExitCode {
    cli::main()
}
