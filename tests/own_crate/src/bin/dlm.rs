use example_store as _;

fn main() -> std::process::ExitCode {
    dlm::cli::main()
}
