//! Logging calls before and after they are made.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use dlm::Moment;

use super::event::{Answer, CallId, Operation};
use super::line::Line;

/// The log of one client. Each line is written at once and in one piece, so a client that is killed leaves all lines
/// before its death.
///
/// ```
/// use dlm_testkit::history::{Answer, History, Operation, Recorder};
///
/// let mut log = Recorder::new("A", Vec::new());
/// let id = log.call("row-1", Operation::Get);
/// log.returned(&id, Answer::Value(Some(7)));
/// let history = History::parse([String::from_utf8(log.into_inner()).unwrap()])?;
/// assert_eq!(history.events()[0].answer, Answer::Value(Some(7)));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Recorder<W> {
    client: Arc<str>,
    calls: u64,
    log: W,
}

impl Recorder<File> {
    /// Appends to the file at `path`, and creates it if it does not exist. Several clients may append to one file.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn append(client: &str, path: impl AsRef<Path>) -> io::Result<Recorder<File>> {
        Ok(Recorder::new(client, File::options().append(true).create(true).open(path)?))
    }
}

impl<W: Write> Recorder<W> {
    /// Makes the log of a client. No two clients of a history may have the same name. `log` must not buffer if the
    /// process may be killed.
    pub fn new(client: &str, log: W) -> Recorder<W> {
        Recorder { client: client.into(), calls: 0, log }
    }

    /// Logs that a call is about to be made.
    ///
    /// # Panics
    /// If the line cannot be written: a log with a hole would accuse the library.
    pub fn call(&mut self, key: &str, operation: Operation) -> CallId {
        self.calls += 1;
        let id = CallId { client: Arc::clone(&self.client), number: self.calls };
        self.write(|id, at| Line::Call { id, at, key: key.to_owned(), operation }, &id);
        id
    }

    /// Logs that the call has returned.
    ///
    /// # Panics
    /// If the line cannot be written.
    pub fn returned(&mut self, id: &CallId, answer: Answer) {
        self.write(|id, at| Line::Return { id, at, answer }, id);
    }

    /// Returns what the log was written to.
    pub fn into_inner(self) -> W {
        self.log
    }

    fn write(&mut self, line: impl FnOnce(CallId, Moment) -> Line, id: &CallId) {
        let line = line(id.clone(), Moment::now());
        self.log.write_all(line.to_text().as_bytes()).expect("the log of a history could not be written");
    }
}
