//! The release archives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dlm_fixtures::{c, go};
use dlm_testkit::left_to_the_long_run;

use crate::{commands_of, folder, lines, page};

const HERE: &str = concat!(env!("CARGO_PKG_NAME"), "-", env!("CARGO_PKG_VERSION"));

fn host() -> String {
    let version = c::run(Command::new("rustc").arg("-vV")).unwrap();
    version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned()
}

fn unpacked(archives: &Path, target: &str, into: &Path) -> PathBuf {
    let name = format!("{HERE}-{target}");
    c::run(Command::new("tar").arg("-xzf").arg(archives.join(format!("{name}.tar.gz"))).arg("-C").arg(into))
        .unwrap();
    into.join(name)
}

#[test]
fn the_archive_is_complete_and_its_go_package_needs_no_rust() {
    if left_to_the_long_run() {
        return;
    }
    let archives = folder("archives");
    fs::remove_dir_all(&archives).unwrap();
    let commands = commands_of("the_archive_is_complete_and_its_go_package_needs_no_rust");
    let one =
        commands.lines().find(|line| line.contains(&host())).expect("the page has this machine's target");
    c::run(lines(one).env("INTO", &archives)).unwrap();
    c::run(Command::new("sha256sum").args(["-c", "SHA256SUMS"]).current_dir(&archives)).unwrap();
    // Unpacked elsewhere than it was made.
    let dir = tempfile::tempdir().unwrap();
    let root = unpacked(&archives, &host(), dir.path());
    c::assert_for_all(&root);
    for file in [
        "bin/dlm",
        "lib/libdlm.a",
        "lib/libdlm.so",
        "include/dlm.h",
        "include/dlm.hpp",
        "share/dlm/cmake/dlmConfig.cmake",
        "share/man/man1/dlm-run.1",
        "share/zsh/vendor-completions/_dlm",
        "README.md",
        "docs/c.md",
        "c-examples/lock.c",
        "examples/python/dlm.py",
        "LICENSE",
        "README.archive",
    ] {
        assert!(root.join(file).exists(), "{file}");
    }
    assert_eq!(c::run(Command::new(root.join("bin/dlm")).arg("--version")).unwrap(), "dlm 0.1.0\n");
    says_what_is_in_it(&root);
    c_program_runs(&root);
    if go::has_go() {
        go_program_runs(&root);
    }
}

/// The crates of the licences and of the bill of materials are those that cargo links.
fn says_what_is_in_it(root: &Path) {
    let licences = fs::read_to_string(root.join("LICENSES.crates")).unwrap();
    for text in ["  aerospike 3", "  ring 0", "The OpenLDAP Public License", "Permission is hereby granted"] {
        assert!(licences.contains(text), "{text}");
    }
    let bill: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(root.join("dlm.cdx.json")).unwrap()).unwrap();
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = bill["components"].as_array().unwrap();
    let listed = licences.lines().skip(2).take_while(|line| line.starts_with("  ")).count();
    assert!(listed > 100 && components.len() == listed, "{listed} and {}", components.len());
    let known: Vec<_> = components.iter().map(|it| &it["bom-ref"]).collect();
    for component in components {
        assert_eq!(component["hashes"][0]["content"].as_str().unwrap().len(), 64, "{component}");
    }
    let dependencies = bill["dependencies"].as_array().unwrap();
    assert_eq!(dependencies.len(), components.len() + 1);
    for reference in dependencies.iter().flat_map(|it| it["dependsOn"].as_array().unwrap()) {
        assert!(known.contains(&reference), "{reference}");
    }
}

/// As README.archive says.
fn c_program_runs(root: &Path) {
    let readme = fs::read_to_string(root.join("README.archive")).unwrap();
    let here = root.to_str().unwrap();
    let source = c::root().join("c-examples/lock.c");
    let commands: Vec<_> =
        readme.lines().filter(|it| it.starts_with("  export ") || it.starts_with("  cc ")).collect();
    assert_eq!(commands.len(), 3, "{readme}");
    let run = format!("\n./a.out embedded:{here}/store");
    let commands = [commands[0], commands[1], &run, commands[2], &run].join("\n");
    let commands = commands.replace("HERE", here).replace("program.c", source.to_str().unwrap());
    let said = c::run(Command::new("sh").args(["-exc", &commands]).current_dir(root)).unwrap();
    assert_eq!(said.matches("writing with fence ").count(), 2, "{said}");
}

/// As README.archive says, without cargo and rustc on the PATH.
fn go_program_runs(root: &Path) {
    let readme = fs::read_to_string(root.join("README.archive")).unwrap();
    let commands: Vec<_> = readme
        .lines()
        .filter(|line| line.starts_with("  go ") && !line.contains("libdlm.org/dlm;"))
        .collect();
    let module = root.join("orders");
    fs::create_dir(&module).unwrap();
    fs::copy(root.join("go/examples/lock/main.go"), module.join("main.go")).unwrap();
    let go = c::run(Command::new("go").args(["env", "GOROOT"])).unwrap();
    let commands = format!(
        "! command -v cargo && ! command -v rustc\ngo mod init orders\n{}\n./orders embedded:{}/store",
        commands.join("\n").replace("HERE", root.to_str().unwrap()),
        root.display(),
    );
    let mut sh = Command::new("sh");
    sh.args(["-exc", &commands]).current_dir(&module).env("PATH", format!("{}/bin:/usr/bin:/bin", go.trim()));
    sh.envs([("GOTOOLCHAIN", "local"), ("GOPROXY", "off"), ("GOWORK", "off"), ("CGO_ENABLED", "1")]);
    let said = c::run(&mut sh).unwrap();
    assert!(said.contains("fence"), "{said}");
}

/// Builds all targets as for a release, and runs the commands of those that this machine can run, also with qemu.
#[test]
fn every_target_is_built_or_skipped_with_its_reason() {
    let commands = commands_of("every_target_is_built_or_skipped_with_its_reason");
    let all = commands.lines().next().unwrap();
    let script_text = fs::read_to_string(c::root().join(".packaging/archive")).unwrap();
    let targets = script_text.split("TARGETS=(").nth(1).unwrap().split(')').next().unwrap();
    let page = page();
    for target in targets.split_whitespace() {
        assert!(page.contains(&format!("| `{target}` | ")), "{target}");
    }
    if left_to_the_long_run() {
        return;
    }
    let archives = folder("all_archives");
    fs::remove_dir_all(&archives).unwrap();
    let mut build = lines(all);
    let built = build.env_remove("LIBRARIES").env("INTO", &archives).output().unwrap();
    let said = String::from_utf8(built.stderr).unwrap();
    assert!(built.status.success(), "{said}");
    let dir = tempfile::tempdir().unwrap();
    for target in targets.split_whitespace() {
        if let Some(reason) =
            said.lines().find(|it| it.starts_with(&format!("*** skipped: {target}, because ")))
        {
            eprintln!("{reason}");
            continue;
        }
        runs(&unpacked(&archives, target, dir.path()), target);
    }
}

fn runs(root: &Path, target: &str) {
    let emulator: &[&str] = if target == "aarch64-unknown-linux-gnu" && cfg!(target_arch = "x86_64") {
        &["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
    } else {
        &[]
    };
    let source = c::root().join("c-examples/lock.c");
    let program = root.join("program");
    let compiler = match target {
        "aarch64-unknown-linux-gnu" => "aarch64-linux-gnu-gcc",
        "x86_64-unknown-linux-musl" => "musl-gcc",
        _ => "cc",
    };
    let libraries: &[&str] = match target {
        "x86_64-unknown-linux-musl" => &["-static"],
        _ => &["-lutil", "-lrt", "-lpthread", "-lm", "-ldl"],
    };
    let mut cc = Command::new(compiler);
    cc.arg(&source).arg("-I").arg(root.join("include")).arg(root.join("lib/libdlm.a")).args(libraries);
    c::run(cc.arg("-o").arg(&program)).unwrap();
    let run = |program: &Path, arguments: &[&str]| {
        let words =
            emulator.iter().map(|it| Path::new(*it)).chain([program]).chain(arguments.iter().map(Path::new));
        let words: Vec<_> = words.collect();
        c::run(Command::new(words[0]).args(&words[1..])).unwrap()
    };
    let store = format!("embedded:{}", root.join("store").display());
    assert!(run(&program, &[&store]).starts_with("writing with fence "), "{target}");
    let tool = root.join("bin/dlm");
    if emulator.is_empty() {
        assert_eq!(run(&tool, &["run", "--store", &store, "report", "--", "/bin/true"]), "", "{target}");
    } else {
        // A program under qemu can start no other one, not even itself, unless the kernel knows qemu (binfmt_misc).
        assert!(run(&tool, &["acquire", "--store", &store, "report"]).starts_with("dlm"), "{target}");
        assert!(run(&tool, &["show", "--store", &store, "report"]).contains("state held"), "{target}");
    }
}
