//! Locks in an async program, without a dependency on a runtime: [`acquire`] works with any function that waits until a
//! descriptor is readable, which every runtime has. The runtime of this example is [`Loop`], a few lines over `poll(2)`.
//! Its three tasks take turns with one lock, in one thread.
//!
//!     cargo run --example async_acquire -- [STORE]

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use dlm::{AcquireOptions, Error, Lease, Level, Lock, LockManager};
use rustix::event::{PollFd, PollFlags, poll};

/// Acquires the lock without blocking the thread. Dropping the future gives up the wait. With tokio, `readable` is
/// `async |fd| AsyncFd::with_interest(fd, Interest::READABLE)?.readable().await.map(drop)`.
pub async fn acquire(
    lock: &Lock,
    how: &AcquireOptions,
    readable: impl AsyncFn(BorrowedFd<'_>) -> io::Result<()>,
) -> dlm::Result<Lease> {
    let pending = lock.start(how)?;
    loop {
        if let Some(lease) = pending.take()? {
            return Ok(lease);
        }
        let failed = |error: io::Error| Error::Internal { what: "poll".into(), source: Some(error.into()) };
        readable(pending.fd()?).await.map_err(failed)?;
    }
}

type Task<'a> = Pin<Box<dyn Future<Output = dlm::Result<()>> + 'a>>;

/// A runtime for one thread: it runs tasks, and parks in `poll(2)` while none of them can go on.
#[derive(Default)]
struct Loop {
    parked: RefCell<Vec<(OwnedFd, Waker)>>,
}

/// Wakes a task by setting its flag.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Loop {
    /// Waits until the descriptor is readable.
    async fn readable(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut copy = Some(fd.try_clone_to_owned()?);
        poll_fn(|context| match copy.take() {
            Some(fd) => {
                self.parked.borrow_mut().push((fd, context.waker().clone()));
                Poll::Pending
            }
            None => Poll::Ready(Ok(())),
        })
        .await
    }

    fn run(&self, tasks: Vec<Task<'_>>) -> dlm::Result<()> {
        let woken = |task| (task, Arc::new(Flag(AtomicBool::new(true))));
        let mut tasks: Vec<_> = tasks.into_iter().map(woken).collect();
        while !tasks.is_empty() {
            let mut waiting = Vec::new();
            for (mut task, flag) in tasks {
                let waker = Waker::from(Arc::clone(&flag));
                let is_woken = flag.0.swap(false, Ordering::SeqCst);
                match is_woken.then(|| task.as_mut().poll(&mut Context::from_waker(&waker))) {
                    Some(Poll::Ready(result)) => result?,
                    Some(Poll::Pending) | None => waiting.push((task, flag)),
                }
            }
            tasks = waiting;
            self.park();
        }
        Ok(())
    }

    /// Waits until a descriptor is readable, and wakes its task.
    fn park(&self) {
        let parked = self.parked.take();
        let mut polled: Vec<_> = parked.iter().map(|(fd, _)| PollFd::new(fd, PollFlags::IN)).collect();
        if polled.is_empty() || poll(&mut polled, None).is_err() {
            // Nobody waits, or a signal arrived: every task looks again.
            return parked.into_iter().for_each(|(_, waker)| waker.wake());
        }
        let is_ready: Vec<_> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        for ((fd, waker), is_ready) in parked.into_iter().zip(is_ready) {
            if is_ready {
                waker.wake();
            } else {
                self.parked.borrow_mut().push((fd, waker));
            }
        }
    }
}

/// Takes turns: each task holds the lock three times.
async fn work(runtime: &Loop, lock: Lock, turns: &RefCell<Vec<dlm::Fence>>) -> dlm::Result<()> {
    for _ in 0..3 {
        let lease =
            acquire(&lock, &AcquireOptions::new(), async |fd: BorrowedFd<'_>| runtime.readable(fd).await)
                .await?;
        turns.borrow_mut().push(lease.guard()?);
        // A program that must not block leaves this to another thread.
        lease.release()?;
    }
    Ok(())
}

/// Runs the tasks with one lock of the store. Returns the fences of their turns.
pub fn run(store: &str) -> dlm::Result<Vec<dlm::Fence>> {
    let manager = LockManager::builder().store_uri(store).client("async-example").open()?;
    manager.initialize()?;
    let lock = manager.lock("report", Level::Xdc)?;
    let (runtime, turns) = (Loop::default(), RefCell::default());
    runtime.run((0..3).map(|_| Box::pin(work(&runtime, lock.clone(), &turns)) as Task<'_>).collect())?;
    manager.close()?;
    Ok(turns.into_inner())
}

fn main() -> dlm::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let turns = run(&store)?;
    println!("{} turns, fences rise: {}", turns.len(), turns.is_sorted_by(|one, next| one < next));
    Ok(())
}
