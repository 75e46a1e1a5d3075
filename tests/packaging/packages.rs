//! The Debian packages.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use dlm_fixtures::c;
use dlm_testkit::{left_to_the_long_run, skipped};

use crate::{commands_of, folder, has, lines, page, script_under};

/// Files of the kernel DLM's packages libdlm3 and libdlm-dev, without their manual pages and their own folders.
const OF_THE_KERNEL: [&str; 9] = [
    "usr/include/libdlm.h",
    "usr/lib/MULTIARCH/libdlm.so",
    "usr/lib/MULTIARCH/libdlm.so.3",
    "usr/lib/MULTIARCH/libdlm.so.3.0",
    "usr/lib/MULTIARCH/libdlm_lt.so",
    "usr/lib/MULTIARCH/libdlm_lt.so.3",
    "usr/lib/MULTIARCH/libdlm_lt.so.3.0",
    "usr/lib/MULTIARCH/pkgconfig/libdlm.pc",
    "usr/lib/MULTIARCH/pkgconfig/libdlm_lt.pc",
];

struct Package {
    name: String,
    file: PathBuf,
    /// Its unpacked files.
    root: PathBuf,
}

impl Package {
    /// Returns the paths of its files, with the folder of the machine's kind as `MULTIARCH`.
    fn files(&self) -> BTreeSet<String> {
        let listed =
            c::run(Command::new("find").arg(&self.root).args(["-not", "-type", "d", "-printf", "%P\n"]));
        listed.unwrap().lines().map(|path| path.replace(multiarch(), "MULTIARCH")).collect()
    }
}

fn multiarch() -> &'static str {
    static MULTIARCH: OnceLock<String> = OnceLock::new();
    MULTIARCH.get_or_init(|| {
        let arch = c::run(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH")).unwrap();
        arch.trim().to_owned()
    })
}

/// Builds the packages once for all tests, and unpacks them. Returns `None` without Debian's tools.
#[track_caller]
fn packages() -> Option<&'static [Package]> {
    static BUILT: OnceLock<Vec<Package>> = OnceLock::new();
    if left_to_the_long_run() || !has("dpkg-shlibdeps") {
        return None;
    }
    Some(BUILT.get_or_init(|| {
        let debs = folder("debs");
        fs::remove_dir_all(&debs).unwrap();
        fs::create_dir(&debs).unwrap();
        // The page writes to a folder in which other packages may be.
        let began = SystemTime::now();
        c::run(&mut as_released(lines(&commands_of("the_packages_have_what_the_page_lists")))).unwrap();
        for file in fs::read_dir(c::root().join("target/debian")).unwrap().map(Result::unwrap) {
            if file.metadata().unwrap().modified().unwrap() >= began {
                fs::rename(file.path(), debs.join(file.file_name())).unwrap();
            }
        }
        let mut files: Vec<_> = fs::read_dir(&debs).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(unpacked).collect()
    }))
}

/// Returns the command without the libraries of this test run: it packs what it builds, as the archives of all targets do.
fn as_released(mut command: Command) -> Command {
    command.env_remove("LIBRARIES");
    command
}

fn unpacked(file: PathBuf) -> Package {
    let name = file.file_name().unwrap().to_str().unwrap().split('_').next().unwrap().to_owned();
    let root = folder("unpacked").join(&name);
    let _ = fs::remove_dir_all(&root);
    c::run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&root)).unwrap();
    Package { name, file, root }
}

fn named<'a>(packages: &'a [Package], name: &str) -> &'a Package {
    packages.iter().find(|package| package.name == name).unwrap_or_else(|| panic!("no package {name}"))
}

#[test]
fn the_packages_have_what_the_page_lists() {
    let Some(packages) = packages() else { return };
    let page = page();
    let rows: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("| `") && line.contains("`/usr/"))
        .map(|line| line.split('`').skip(1).step_by(2).collect::<Vec<_>>())
        .collect();
    let listed: BTreeSet<_> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(listed, packages.iter().map(|package| package.name.as_str()).collect());
    for row in rows {
        let files = named(packages, row[0]).files();
        for path in row.iter().filter_map(|it| it.strip_prefix('/')) {
            assert!(files.contains(path), "{} has no {path}: {files:#?}", row[0]);
        }
    }
    for package in packages {
        c::assert_for_all(&package.root);
        let files = package.files();
        for theirs in OF_THE_KERNEL {
            assert!(!files.contains(theirs), "{} has {theirs}, as libdlm3 or libdlm-dev", package.name);
        }
    }
}

#[test]
fn lintian_finds_nothing() {
    if !has("lintian") {
        return;
    }
    let Some(packages) = packages() else { return };
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error,warning", "--allow-root"]);
    c::run(lintian.args(packages.iter().map(|package| &package.file))).unwrap();
}

/// readelf, and with it lintian, takes a hundred times longer for a file whose number of sections has no room in its header.
#[test]
fn the_static_library_has_the_number_of_its_sections_in_its_header() {
    let Some(packages) = packages() else { return };
    let archive = "usr/lib/MULTIARCH/dlm-locks/libdlm.a".replace("MULTIARCH", multiarch());
    let archive = named(packages, "libdlm-locks-dev").root.join(archive);
    let header = c::run(Command::new("readelf").arg("-h").arg(&archive)).unwrap();
    let sections = header.lines().find_map(|line| line.trim().strip_prefix("Number of section headers:"));
    let sections: u32 = sections.expect("a number").trim().parse().expect("a number in the header");
    assert!((1..0xff00).contains(&sections), "{sections}");
}

/// The number of the name and that of the package are `DLM_ABI`. Debian's tools write dependencies from `shlibs` and
/// `symbols`.
#[test]
fn the_library_has_the_name_that_its_package_says() {
    let Some(packages) = packages() else { return };
    let abi = c::abi(&c::root().join("include/dlm.h"));
    let (package, soname) = (format!("libdlm-locks{abi}"), c::soname(&abi));
    let package = named(packages, &package);
    let library = package.root.join("usr/lib").join(multiarch()).join(&soname);
    let dynamic = c::run(Command::new("readelf").arg("-d").arg(&library)).unwrap();
    assert!(dynamic.contains(&format!("Library soname: [{soname}]")), "{dynamic}");
    assert!(dynamic.contains("NODELETE") && dynamic.contains("BIND_NOW"), "{dynamic}");
    // A program that was linked with it asks for this version of each function.
    let symbols = c::run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library)).unwrap();
    let versioned = format!("@@DLM_{abi}");
    let functions = symbols.lines().filter(|line| line.contains(" T ")).count();
    assert_eq!(functions, c::functions().len());
    assert_eq!(symbols.lines().filter(|line| line.ends_with(&versioned)).count(), functions, "{symbols}");
    let control =
        |file: &str| c::run(Command::new("dpkg-deb").arg("-I").arg(&package.file).arg(file)).unwrap();
    assert_eq!(control("triggers"), "activate-noawait ldconfig\n");
    assert_eq!(control("shlibs"), format!("libdlm-locks {abi} libdlm-locks{abi} (>= 0.1.0~)\n"));
    assert!(control("symbols").starts_with(&format!("{soname} libdlm-locks{abi} ")));
    assert!(control("control").contains("\nDepends: libc6 (>= "), "{}", control("control"));
    assert!(control("control").contains("\nMaintainer: libdlm maintainers <libdlm@packages.invalid>\n"));
}

#[test]
fn each_command_has_a_manual_page_and_completions_offer_it() {
    let Some(packages) = packages() else { return };
    let share = named(packages, "dlm-locks").root.join("usr/share");
    let help = c::run(Command::new(env!("CARGO_BIN_EXE_dlm")).arg("--help")).unwrap();
    let list = help.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names: Vec<_> = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    let names: Vec<_> = names.into_iter().filter(|name| !name.is_empty()).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in &names {
        assert!(share.join(format!("man/man1/dlm-{name}.1.gz")).exists(), "{name}");
    }
    assert!(
        share.join("man/man1/dlm.1.gz").exists() && share.join("man/man1/dlm-latch-create.1.gz").exists()
    );
    for file in [
        "bash-completion/completions/dlm",
        "fish/vendor_completions.d/dlm.fish",
        "zsh/vendor-completions/_dlm",
    ] {
        let text = fs::read_to_string(share.join(file)).unwrap();
        assert!(names.iter().all(|name| text.contains(name)), "{file}");
        assert!(!text.contains("__exec") && !text.contains("__shell-files"), "{file} offers hidden commands");
    }
    // The same words as bash would offer after `dlm ` and Tab.
    let completions = share.join("bash-completion/completions/dlm");
    let offer =
        "source \"$1\" && COMP_WORDS=(dlm la) COMP_CWORD=1 && _dlm dlm la dlm && echo \"${COMPREPLY[@]}\"";
    let offered = c::run(Command::new("bash").args(["-c", offer, "-"]).arg(completions)).unwrap();
    assert_eq!(offered, "latch\n");
}

/// CMake must take the library of the package, also beside the `libdlm.so` of libdlm-dev.
#[test]
fn cmake_finds_the_library_of_the_package() {
    if !has("cmake") {
        return;
    }
    let Some(packages) = packages() else { return };
    let dir = tempfile::tempdir().unwrap();
    for package in packages.iter().filter(|package| package.name.starts_with("libdlm-locks")) {
        c::run(Command::new("dpkg-deb").arg("-x").arg(&package.file).arg(dir.path())).unwrap();
    }
    fs::write(dir.path().join("usr/lib").join(multiarch()).join("libdlm.so"), "the kernel's").unwrap();
    let text = "cmake_minimum_required(VERSION 3.14)\nproject(example C)\nfind_package(dlm 0.1 CONFIG REQUIRED)\n\
                get_target_property(library dlm::dlm IMPORTED_LOCATION)\n\
                get_target_property(folder dlm::dlm INTERFACE_INCLUDE_DIRECTORIES)\n\
                file(WRITE ${CMAKE_BINARY_DIR}/found \"${library} ${folder}\")\n";
    fs::write(dir.path().join("CMakeLists.txt"), text).unwrap();
    let mut cmake = Command::new("cmake");
    cmake.arg("-S").arg(dir.path()).arg("-B").arg(dir.path().join("build"));
    c::run(cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", dir.path().join("usr").display()))).unwrap();
    let found = fs::read_to_string(dir.path().join("build/found")).unwrap();
    assert!(found.ends_with("usr/include/dlm-locks") && found.contains("/dlm-locks/libdlm.so "), "{found}");
}

/// The list is for Debian's tools: each function with the version that brought it. With `DLM_BLESS` set, new functions
/// are added with the current version.
#[test]
fn the_list_of_symbols_is_that_of_the_header() {
    let path = c::root().join(".packaging/debian/symbols");
    let text = fs::read_to_string(&path).unwrap();
    let (head, listed) = text.split_at(text.find("\n ").expect("a list") + 1);
    let name = |line: &str| line.trim().split('@').next().unwrap().to_owned();
    let known: BTreeSet<_> = listed.lines().map(name).collect();
    // And the version that all functions have.
    let functions = c::functions().into_iter().map(|function| function.name);
    let declared: BTreeSet<_> = functions.chain(["DLM_ABI".to_owned()]).collect();
    if std::env::var_os("DLM_BLESS").is_some() {
        let new = declared.difference(&known);
        let new = new.map(|name| format!(" {name}@DLM_ABI {}~", env!("CARGO_PKG_VERSION")));
        let mut lines: Vec<_> =
            listed.lines().map(str::to_owned).filter(|it| declared.contains(&name(it))).collect();
        lines.extend(new);
        lines.sort();
        fs::write(&path, format!("{head}{}\n", lines.join("\n"))).unwrap();
        return;
    }
    assert_eq!(
        known, declared,
        "after a change of dlm.h: DLM_BLESS=1 cargo test --all-features --test packaging symbols"
    );
}

#[test]
fn the_same_commit_gives_the_same_packages() {
    let Some(packages) = packages() else { return };
    let again = folder("again");
    fs::remove_dir_all(&again).unwrap();
    // Another umask, and another time zone.
    c::run(as_released(script_under("002", "deb")).arg(&again).env("TZ", "Asia/Tokyo")).unwrap();
    for package in packages {
        let other = again.join(package.file.file_name().unwrap());
        assert!(fs::read(&package.file).unwrap() == fs::read(other).unwrap(), "{} differs", package.name);
    }
}

/// The commands of the page, in a Debian 13 where the kernel DLM's packages are installed too.
#[test]
fn a_fresh_debian_installs_and_uses_the_packages() {
    let commands = commands_of("a_fresh_debian_installs_and_uses_the_packages");
    if left_to_the_long_run() {
        return;
    }
    if c::run(Command::new("id").arg("-u")).unwrap() != "0\n" {
        return skipped("debootstrap", "only root can make a Debian in a folder");
    }
    let Some(packages) = packages() else { return };
    if !has("debootstrap") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    // The kernel's library is linked as before, and each program has the library that it asked for.
    let theirs = "echo 'int main(void) { return 0; }' | \
                  cc -include sys/types.h -include libdlm.h -x c - -o ~/theirs -Wl,--no-as-needed $(pkg-config --cflags --libs libdlm)\n\
                  ~/theirs\n\
                  ldd ~/theirs ~/examples/lock ~/examples/lock_cpp\n\
                  dpkg-query --show libdlm3 libdlm-dev\n\
                  ! command -v cargo && ! command -v rustc\n\
                  man=$(zcat /usr/share/man/man1/dlm.1.gz) && grep -q 'EXIT STATUS' <<<\"$man\"\n";
    fs::write(
        &script,
        format!("apt-get update && apt-get install -y libdlm3 libdlm-dev\n{commands}\n{theirs}"),
    )
    .unwrap();
    let debs = packages[0].file.parent().unwrap();
    let mut fresh = Command::new(c::root().join("tests/packaging/fresh_debian"));
    let said = c::run(fresh.arg(debs).arg(&script)).unwrap();
    for line in ["  0 overlaps", "libdlm3", "libdlm.so.3 =>", "step 2 written with fence"] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert_eq!(said.matches("writing with fence").count(), 2, "C and C++: {said}");
    assert_eq!(
        said.matches(&format!("{} => /", c::soname(&c::abi(&c::root().join("include/dlm.h"))))).count(),
        2,
        "{said}"
    );
}
