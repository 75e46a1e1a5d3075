//! A server that answers nonsense, or too much, or without an end. The client returns an error in time and does not
//! panic.
#![cfg(feature = "aerospike")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dlm::{Level, LockManager, Moment};
use dlm_testkit::LONG;

const TIMEOUT: Duration = Duration::from_millis(400);

/// A server that answers everything it receives with the same bytes.
struct Liar {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    /// Number of requests that were answered.
    answered: Arc<AtomicUsize>,
    listener: Option<JoinHandle<()>>,
}

impl Liar {
    fn answering(answer: Vec<u8>) -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let answered = Arc::new(AtomicUsize::new(0));
        let answers = Arc::clone(&answered);
        let thread = thread::Builder::new().name("dlm-test-liar".into());
        let listener = thread.spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(stream) = stream {
                    lie(stream, &answer, &answers);
                }
            }
        });
        Liar { address, stopping, answered, listener: Some(listener.unwrap()) }
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }
}

/// Answers until the client closes the connection or is silent. One connection at a time is enough.
fn lie(mut stream: TcpStream, answer: &[u8], answered: &AtomicUsize) {
    let mut heard = [0; 4096];
    let _ = stream.set_read_timeout(Some(TIMEOUT));
    while let Ok(1..) = stream.read(&mut heard) {
        if stream.write_all(answer).is_err() {
            return;
        }
        answered.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// Returns an info reply. Its header states this length, which may be wrong.
fn info(length: u64, text: &str) -> Vec<u8> {
    let header = (2u64 << 56) | (1 << 48) | length;
    [&header.to_be_bytes(), text.as_bytes()].concat()
}

#[test]
fn nonsense_is_an_error_in_time_and_no_panic() {
    let text = "node\tA1\npartition-generation\t-1\nfeatures\t;;;\nservice\t:::\npeers\t1,x,[[\nreplicas\tt:9,9,AAA=;;\n";
    let answers = [
        Vec::new(),
        vec![0; 7],
        vec![0xff; 4096],
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        info(0, ""),
        info(1 << 40, "node\t"),
        info(0xffff_ffff_ffff, ""),
        info(text.len() as u64, text),
        info(3, text),
        info(8, "\u{0}\t\n\t\t\n\n"),
    ];
    for answer in answers {
        let liar = Liar::answering(answer.clone());
        let uri = format!("aerospike://{}/test/tests?client=hostile", liar.address);
        // On a busy machine the time may be over before the server has received anything.
        for timeout in [TIMEOUT, 5 * TIMEOUT, 25 * TIMEOUT] {
            let manager = LockManager::builder().store_uri(&uri).timeout(timeout).open().unwrap();
            let lock = manager.lock("a", Level::Xdc).unwrap();
            let began = Moment::now();
            for error in [lock.try_acquire().unwrap_err(), lock.inspect().unwrap_err()] {
                assert!(!error.chain().contains("panicked"), "{answer:?}: {}", error.chain());
            }
            let took = Moment::now().since(began);
            assert!(took < LONG, "{answer:?}: {took:?}");
            if liar.answered() > 0 {
                break;
            }
        }
        assert!(liar.answered() > 0, "{answer:?}: nothing was asked");
    }
}
