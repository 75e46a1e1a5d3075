//! The `dlm` command uses only the public API of the library. Its folder is compiled here, outside the library, where
//! `dlm::` reaches only public items and `crate::` reaches only the folder.
#![allow(dead_code, unreachable_pub, reason = "compiled, not called")]

#[path = "../src/cli/mod.rs"]
mod cli;

#[test]
fn the_command_needs_nothing_but_the_public_interface() {
    let compiled: fn() -> std::process::ExitCode = cli::main;
    assert_eq!(size_of_val(&compiled), size_of::<usize>());
}
