//! A copy of the source tree. Lines are broken in it and never in the tree itself.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folders that are not copied, wherever they are.
const LEFT_OUT: [&str; 2] = ["target", ".git"];

/// The copy.
#[derive(Debug)]
pub struct Tree {
    folder: PathBuf,
}

impl Tree {
    /// Makes `folder` a copy of `source`, but with these texts of files, which are named by their paths from `source`.
    /// Files that are as they have to be keep their times, so cargo builds only what changed.
    ///
    /// # Errors
    /// Of reading and writing.
    pub fn copy(source: &Path, folder: PathBuf, changed: &BTreeMap<String, String>) -> io::Result<Tree> {
        fs::create_dir_all(&folder)?;
        let changed = changed.iter().map(|(file, text)| (source.join(file), text.as_str())).collect();
        copy_into(source, &folder, &changed)?;
        Ok(Tree { folder })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Gives a file this text until the result is dropped.
    ///
    /// # Errors
    /// Of reading and writing.
    pub fn change(&self, file: &str, text: &str) -> io::Result<Changed> {
        let path = self.folder.join(file);
        let before = fs::read_to_string(&path)?;
        fs::write(&path, text)?;
        Ok(Changed { path, before })
    }
}

/// A changed file of the copy. Dropping it gives the file its text from before.
#[derive(Debug)]
#[must_use = "dropping it takes the change back"]
pub struct Changed {
    path: PathBuf,
    before: String,
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, &self.before) {
            // The next copy mends it too.
            eprintln!("{}: {error}", self.path.display());
        }
    }
}

fn copy_into(source: &Path, folder: &Path, changed: &BTreeMap<PathBuf, &str>) -> io::Result<()> {
    for entry in fs::read_dir(source)? {
        let (entry, kind) = entry.and_then(|entry| entry.file_type().map(|kind| (entry, kind)))?;
        let name = entry.file_name();
        if LEFT_OUT.iter().any(|left_out| name == *left_out) {
            continue;
        }
        let (from, to) = (entry.path(), folder.join(&name));
        if kind.is_dir() {
            fs::create_dir_all(&to)?;
            copy_into(&from, &to, changed)?;
        } else if let Some(text) = changed.get(&from) {
            if !fs::read(&to).is_ok_and(|there| there == text.as_bytes()) {
                fs::write(&to, text)?;
            }
        } else if kind.is_file()
            && !fs::read(&to).is_ok_and(|there| fs::read(&from).is_ok_and(|it| it == there))
        {
            fs::copy(&from, &to)?;
        }
    }
    // A file that is gone from the source must not be tested.
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let left_out = LEFT_OUT.iter().any(|left_out| entry.file_name() == *left_out);
        if !left_out && !source.join(entry.file_name()).exists() {
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}
