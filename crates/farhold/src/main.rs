//! The `farhold` binary.

fn main() -> std::process::ExitCode {
    farhold::cli::main()
}
