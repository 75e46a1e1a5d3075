//! A copy of the source tree. Lines are broken in it and never in the tree itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::list::Break;

/// Folders that are not copied, wherever they are.
const LEFT_OUT: [&str; 2] = ["target", ".git"];

/// The copy.
#[derive(Debug)]
pub struct Tree {
    folder: PathBuf,
}

impl Tree {
    /// Makes `folder` a copy of `source`. Files that are equal keep their times, so cargo builds only what changed.
    ///
    /// # Errors
    /// Of reading and writing.
    pub fn copy(source: &Path, folder: PathBuf) -> io::Result<Tree> {
        fs::create_dir_all(&folder)?;
        copy_into(source, &folder)?;
        Ok(Tree { folder })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Breaks the line until the result is dropped.
    ///
    /// # Errors
    /// Of reading and writing, and if the piece is not in the file once.
    pub fn break_line(&self, broken: &Break) -> io::Result<Broken> {
        let path = self.folder.join(&broken.file);
        let whole = fs::read_to_string(&path)?;
        if whole.matches(&broken.piece).count() != 1 {
            return Err(io::Error::other(format!("{} is not there once", broken.piece)));
        }
        fs::write(&path, whole.replace(&broken.piece, &broken.replacement))?;
        Ok(Broken { path, whole })
    }
}

/// A broken file of the copy. Dropping it mends the file.
#[derive(Debug)]
#[must_use = "dropping it mends the line"]
pub struct Broken {
    path: PathBuf,
    whole: String,
}

impl Drop for Broken {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, &self.whole) {
            // The next copy mends it too.
            eprintln!("{}: {error}", self.path.display());
        }
    }
}

fn copy_into(source: &Path, folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(source)? {
        let (entry, kind) = entry.and_then(|entry| entry.file_type().map(|kind| (entry, kind)))?;
        let name = entry.file_name();
        if LEFT_OUT.iter().any(|left_out| name == *left_out) {
            continue;
        }
        let (from, to) = (entry.path(), folder.join(&name));
        if kind.is_dir() {
            fs::create_dir_all(&to)?;
            copy_into(&from, &to)?;
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
