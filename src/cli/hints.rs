//! Hints for a command line that cannot be read: which word is wrong, and what it should have been.

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// The commands that run another one.
const RUNNERS: [&str; 2] = ["run", "elect"];

/// Turns `dlm help [COMMAND]` into `dlm [COMMAND] --help`.
pub(crate) fn help_as_option(mut args: Vec<std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    if args.get(1).is_some_and(|arg| arg == "help") {
        args.remove(1);
        args.push("--help".into());
    }
    args
}

/// Returns the words of the commands in `args`, such as `latch down`.
fn verbs(command: &Command, args: &[String]) -> Vec<String> {
    let (mut command, mut found) = (command.clone(), Vec::new());
    for arg in args.iter().skip(1).take_while(|arg| *arg != "--") {
        let Some(sub) = command.find_subcommand(arg).cloned() else { continue };
        found.push(arg.clone());
        command = sub;
    }
    found
}

/// Returns the message for an error of clap: one line, which names the help of the command. `program` is `dlm` with all its
/// commands.
pub(crate) fn in_words(error: &Error, program: &Command, args: &[String]) -> String {
    let verbs = verbs(program, args);
    let help = [&["dlm".to_owned()], &verbs[..], &["--help".to_owned()]].concat().join(" ");
    let verb = verbs.first().map(String::as_str).unwrap_or_default();
    let has_dashes = args.iter().any(|arg| arg == "--");
    let what = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let given = context(error, ContextKind::InvalidSubcommand);
            let parent = verbs.iter().fold(program.clone(), |command, verb| {
                command.find_subcommand(verb).cloned().unwrap_or(command)
            });
            let known = parent.get_subcommands().filter(|sub| !sub.is_hide_set());
            let nearest =
                known.map(|sub| sub.get_name().to_owned()).min_by_key(|name| distance(name, &given));
            let is_near = |name: &String| distance(name, &given) <= 2;
            let hint = nearest.filter(is_near).map(|name| format!("; did you mean {name}?"));
            format!("there is no command '{given}'{}", hint.unwrap_or_default())
        }
        ErrorKind::UnknownArgument if RUNNERS.contains(&verb) && !has_dashes => {
            let given = context(error, ContextKind::InvalidArg);
            format!("'{given}' is no option or name; put -- before the command: dlm {verb} NAME -- COMMAND")
        }
        ErrorKind::MissingRequiredArgument if RUNNERS.contains(&verb) => {
            format!("a name, --, and a command are needed: dlm {verb} NAME -- COMMAND")
        }
        _ => paragraphs(&error.to_string()),
    };
    format!("{what}; see `{help}`")
}

fn context(error: &Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    }
}

/// Joins the paragraphs of clap's message to one line, without the usage and the hint to `--help`.
fn paragraphs(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let paragraphs = text.split("\n\n").filter(|paragraph| {
        !paragraph.starts_with("Usage:") && !paragraph.starts_with("For more information")
    });
    let parts = paragraphs.map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Returns how many letters were added, left out, changed or swapped with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<_>, Vec<_>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let changed = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swapped_letter_is_one_step() {
        for (given, known, steps) in
            [("rnu", "run", 1), ("run", "run", 0), ("relase", "release", 1), ("", "ls", 2)]
        {
            assert_eq!(distance(given, known), steps, "{given}");
        }
    }

    #[test]
    fn a_usage_error_is_one_line_without_the_usage() {
        let text = "error: unexpected argument '--x' found\n\n  tip: to pass '--x' as a value, use '-- --x'\n\n\
                    Usage: dlm [OPTIONS] <COMMAND>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            paragraphs(text),
            "unexpected argument '--x' found; tip: to pass '--x' as a value, use '-- --x'"
        );
    }
}
