//! Latches that a forked child inherited.

use std::time::Duration;

use crate::testing::fork::{alone, in_forked_child};
use crate::testing::patience::LONG;
use crate::{AwaitOptions, Code, LatchKind, Level, LockManager};

/// The library's threads run and hold its mutexes while the process is forked.
#[test]
fn a_forked_child_is_refused_latches_and_hangs_on_none_and_the_parent_is_unhurt() {
    if !alone() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let uri = format!("embedded:{}?client=tests&farm=dc1&poll=10ms&timeout=60s", dir.path().display());
    let manager = LockManager::open(&uri).unwrap();
    let latch = manager.latch("a", Level::Dc, LatchKind::CountDown).unwrap();
    latch.create(1).unwrap();
    let watch = latch.watch().unwrap();
    let mut inherited = Some((manager, latch.clone(), latch.watch().unwrap()));
    for round in 0..50 {
        let ran = in_forked_child(|| {
            let (manager, latch, watch) = inherited.take().unwrap();
            let refused = [
                latch.count().map(|_| ()),
                latch.count_down(),
                latch.create(1),
                latch.await_open(),
                latch.watch().map(|_| ()),
                watch.is_open().map(|_| ()),
                watch.wait(&AwaitOptions::new()).map(|_| ()),
                manager.close(),
            ];
            let refused =
                refused.iter().all(|answer| answer.as_ref().is_err_and(|e| e.code() == Code::Forked));
            drop((watch, latch, manager));
            let own = LockManager::open(&uri).unwrap();
            let own = own.latch("a", Level::Dc, LatchKind::CountDown).unwrap();
            refused && !own.await_open_for(Duration::from_millis(1)).unwrap()
        });
        assert!(ran, "round {round}");
    }
    latch.count_down().unwrap();
    assert!(watch.wait(&AwaitOptions::new().wait(LONG)).unwrap());
}
