//! Threads that log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use crate::history::{Answer, History, Operation, Recorder};

/// A log in memory.
pub(super) type Log = Recorder<Vec<u8>>;

/// Time between two signs of life.
const BEAT: Duration = Duration::from_millis(10);

/// Runs each of `clients` in a thread with a log of its own, and then `last` in this thread. Meanwhile another thread
/// logs signs of life. Returns the history of all.
pub(super) fn run<C>(clients: Vec<C>, last: impl FnOnce(&mut Log)) -> History
where
    C: FnOnce(&mut Log) + Send,
{
    let over = AtomicBool::new(false);
    let logs = thread::scope(|scope| {
        let beats = start(scope, "beats".to_owned(), |log| beat(log, &over));
        let start = |(number, client)| start(scope, format!("client-{number}"), client);
        let clients: Vec<_> = clients.into_iter().enumerate().map(start).collect();
        let mut logs: Vec<Log> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        let mut log = Recorder::new("last", Vec::new());
        last(&mut log);
        over.store(true, Ordering::Release);
        logs.extend([log, beats.join().unwrap()]);
        logs
    });
    let texts = logs.into_iter().map(|log| String::from_utf8(log.into_inner()).expect("a log is text"));
    History::parse(texts).expect("a whole log")
}

fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: String,
    work: impl FnOnce(&mut Log) + Send + 'scope,
) -> ScopedJoinHandle<'scope, Log> {
    let run = move || {
        let mut log = Recorder::new(&name, Vec::new());
        work(&mut log);
        log
    };
    thread::Builder::new().name("dlm-test-client".to_owned()).spawn_scoped(scope, run).unwrap()
}

fn beat(log: &mut Log, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
        let id = log.call("beats", Operation::Beat { every: BEAT });
        log.returned(&id, Answer::Ok);
        thread::sleep(BEAT);
    }
}
