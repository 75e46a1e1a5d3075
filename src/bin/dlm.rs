//! The `dlm` command: see `dlm --help`, and `src/cli`.

fn main() -> std::process::ExitCode {
    dlm::cli::main()
}
