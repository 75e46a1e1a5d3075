//! The Go package against the library that this run has built.
#![allow(dead_code, reason = "each user takes a part")]

use std::path::PathBuf;
use std::process::Command;
use std::time::UNIX_EPOCH;

use super::c::{self, Link};
use super::skip::skipped;

/// Where the package is.
pub(crate) fn root() -> PathBuf {
    c::root().join("go")
}

/// Whether this machine has a Go that is new enough; if not, the test is said to be left out.
#[track_caller]
pub(crate) fn has_go() -> bool {
    let manifest = std::fs::read_to_string(root().join("go.mod")).unwrap();
    let least = manifest.lines().find_map(|line| line.strip_prefix("go ")).unwrap();
    let found = c::run(Command::new("go").args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local"));
    let reason = match found {
        Err(failure) => format!("there is no go: {failure}"),
        Ok(version) if numbers(version.trim().trim_start_matches("go")) < numbers(least) => {
            format!("it needs go {least} or later, and this is {version}")
        }
        Ok(_) => return true,
    };
    skipped("go", reason);
    false
}

fn numbers(version: &str) -> Vec<u32> {
    version.split(|it: char| !it.is_ascii_digit()).map_while(|part| part.parse().ok()).collect()
}

/// A tool of Go, such as "go", in the folder of the package, which builds with the library of this run and
/// downloads nothing. What follows the subcommand in `tags` is for [`Link`].
pub(crate) fn tool(name: &str) -> Command {
    let directory = c::library("libdlm.a");
    let directory = directory.parent().unwrap();
    let mut command = Command::new(name);
    command.current_dir(root()).envs([("GOTOOLCHAIN", "local"), ("GOPROXY", "off"), ("GOWORK", "off")]);
    command.env("CGO_ENABLED", "1").env("CGO_LDFLAGS", format!("-L{}", directory.display()));
    // Go does not notice when the library has changed: a number that has, makes it build anew.
    let changed =
        ["libdlm.a", "libdlm.so"].map(|it| directory.join(it).metadata().unwrap().modified().unwrap());
    let changed = changed.map(|it| it.duration_since(UNIX_EPOCH).unwrap().as_nanos().to_string()).join("_");
    command.env("CGO_CFLAGS", format!("-g -O2 -DDLM_BUILD=L{changed}"));
    command
}

/// The build tags for it.
pub(crate) fn tags(link: Link) -> &'static str {
    match link {
        Link::Shared => "-tags=",
        Link::Static => "-tags=dlm_static",
    }
}
