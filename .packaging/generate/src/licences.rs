//! The licences of the crates that are linked, in full, except for the text of Apache-2.0, which packages have already.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Outcome;
use crate::crates::{Crate, Linked};

const APACHE: &str = "[the text of the Apache License, Version 2.0]";

/// Lists the crates, then prints each licence text once, with the crates that have it.
pub(crate) fn text(linked: &Linked) -> Outcome<String> {
    let mut page = String::from("Crates that are linked, with their licences:\n\n");
    let mut texts = BTreeMap::<String, Vec<String>>::new();
    for (key, known) in &linked.crates {
        page += &format!("  {key}: {}\n", known.licence);
        let mut files = Vec::new();
        collect(&known.folder, &mut files)?;
        // Some crates have no such file. Apache-2.0 needs none.
        if files.is_empty() && !known.licence.contains("Apache-2.0") {
            texts
                .entry(without_file(known)?)
                .or_default()
                .push(format!("{key}: has no file with its licence"));
        }
        for file in files {
            let text = tidy(&without_apache(&fs::read_to_string(&file)?));
            if text != APACHE {
                let name = file.strip_prefix(&known.folder)?.display();
                texts.entry(text).or_default().push(format!("{key}: {name}"));
            }
        }
    }
    page += "\nThe licence of those that name Apache-2.0 is that one, the same as of this library. The files with other\n\
             licences and notices follow.\n";
    for (text, files) in texts {
        page += &format!("\n{}\n{}\n\n{text}\n", "-".repeat(72), files.join("\n"));
    }
    Ok(page)
}

/// Returns the text of a licence that a crate names without a file. The authors are those of its manifest.
fn without_file(known: &Crate) -> Outcome<String> {
    if known.licence != "MIT" {
        return Err(format!("{} has the licence {} and no file with it", known.name, known.licence).into());
    }
    Ok(format!("Copyright (c) {}\n\n{}", known.authors, include_str!("mit.txt").trim_end()))
}

/// Finds the files with licences. A crate can contain those of C code that it builds.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Outcome {
    const NAMES: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];
    let mut paths: Vec<_> =
        fs::read_dir(folder)?.map(|it| it.map(|it| it.path())).collect::<Result<_, _>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if path.is_dir() {
            collect(&path, files)?;
        } else if NAMES.iter().any(|it| name.starts_with(it)) && !name.ends_with(".rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Replaces the text of Apache-2.0, which packages have already, by a line that names it.
fn without_apache(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some(version) = rest.find("Version 2.0, January 2004") {
        let begin = rest[..version].rfind("Apache License").unwrap_or(version);
        // Some copies have no appendix. It ends in the second of these.
        let terms = rest[begin..].find("END OF TERMS AND CONDITIONS");
        let length = terms.map_or(rest.len() - begin, |terms| {
            let appendix =
                rest[begin + terms..].trim_start_matches("END OF TERMS AND CONDITIONS").trim_start();
            let end = "limitations under the License.";
            match appendix.find(end).filter(|_| appendix.starts_with("APPENDIX")) {
                Some(at) => rest.len() - begin - appendix.len() + at + end.len(),
                None => rest.len() - begin - appendix.len(),
            }
        });
        kept += rest[..begin].trim_end_matches([' ', '\t']);
        kept += APACHE;
        rest = &rest[begin + length..];
    }
    kept + rest
}

/// Removes what differs without a meaning.
fn tidy(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned()
}
