//! Manual pages and completions, from the grammar of the command line, for packages.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::args::{Cli, ShellFiles};
use crate::cli::exit::{CommandFailure, CommandOutcome};

pub(crate) fn write(to: &ShellFiles) -> CommandOutcome {
    let written = manual(&to.folder.join("man/man1")).and_then(|()| completions(&to.folder));
    written.map_err(|error| {
        CommandFailure::internal(format!("files in {} cannot be written: {error}", to.folder.display()))
    })?;
    Ok(0)
}

/// Writes the completions to the places where the shells look for them in `/usr/share`.
fn completions(share: &Path) -> io::Result<()> {
    for (shell, file) in [
        (Shell::Bash, "bash-completion/completions/dlm"),
        (Shell::Fish, "fish/vendor_completions.d/dlm.fish"),
        (Shell::Zsh, "zsh/vendor-completions/_dlm"),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut shown(), "dlm", &mut text);
        put(&share.join(file), &text)?;
    }
    Ok(())
}

/// Returns the grammar without hidden commands, which completions would offer.
fn shown() -> Command {
    let all = Cli::command();
    let subcommands = all.get_subcommands().filter(|it| !it.is_hide_set()).cloned();
    Command::new("dlm")
        .disable_help_subcommand(true)
        .args(all.get_arguments().cloned())
        .subcommands(subcommands)
}

/// Writes `dlm.1`, `dlm-run.1` and so on.
fn manual(folder: &Path) -> io::Result<()> {
    let mut command = Cli::command();
    command.build();
    page(&command, "dlm", folder)
}

fn page(command: &Command, name: &str, folder: &Path) -> io::Result<()> {
    let title = name.replace(' ', "-");
    let named = command.clone().bin_name(name).display_name(title.clone());
    let page = Man::new(named).source(concat!("dlm ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    let subcommands: Vec<_> = command.get_subcommands().filter(|it| !it.is_hide_set()).collect();
    if !subcommands.is_empty() {
        page.render_subcommands_section(&mut text)?;
    }
    let end = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    text.write_all(sections(&end).as_bytes())?;
    put(&folder.join(format!("{title}.1")), &text)?;
    subcommands.into_iter().try_for_each(|it| self::page(it, &format!("{name} {}", it.get_name()), folder))
}

/// Turns the end of a help text into sections. A line that ends in a colon and is not indented begins one. Lines are not
/// joined, because they are tables and examples.
fn sections(text: &str) -> String {
    let (mut page, mut is_open) = (String::new(), false);
    for line in text.lines() {
        if let Some(title) = line.strip_suffix(':').filter(|it| !it.starts_with(' ')) {
            page += if is_open { ".fi\n" } else { "" };
            page += &format!(".SH \"{}\"\n.nf\n", title.to_uppercase());
        } else {
            page += if is_open { "" } else { ".SH NOTES\n.nf\n" };
            // Backslashes, hyphens and apostrophes mean something else in a manual page, and so do points at the
            // beginning of a line.
            page += "\\&";
            page += &line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
            page += "\n";
        }
        is_open = true;
    }
    page + if is_open { ".fi\n" } else { "" }
}

fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, text)
}
