//! A Java service that uses the locks of the torture, and makes the calls of its library. It has no fences, releases
//! without a check of the owner, and stamps its records with its own clock.

use std::sync::OnceLock;
use std::time::Duration;

use dlm::{Mode, Moment};
use dlm_fixtures::hbase::Hbase;
use dlm_fixtures::peer::{Peer, hex};
use dlm_fixtures::table::TABLE;
use dlm_testkit::history::{Answer, CallId, Operation, Recorder};
use fastrand::Rng;
use parking_lot::Mutex;

use crate::round::Stage;

/// TTL of its leases. They must not expire before they are released: it would then delete the lock of the next holder.
/// `docs/guarantees.md` says so.
const TTL: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(40);
/// How long it holds a lock.
const HOLDS: Duration = Duration::from_millis(30);
/// The value of its records.
const HELD: &str = "is 4d";

pub(crate) struct Neighbour(Mutex<Peer>);

impl Neighbour {
    /// Returns the service on the HBase that all tests share. Its start takes some seconds.
    pub(crate) fn on(hbase: &Hbase) -> &'static Neighbour {
        static SHARED: OnceLock<Neighbour> = OnceLock::new();
        SHARED.get_or_init(|| Neighbour(Mutex::new(Peer::start(hbase))))
    }

    /// Acquires and releases locks that many clients use, until the round is over.
    pub(crate) fn use_locks(&self, stage: &Stage<'_>) {
        let mut random = Rng::with_seed(stage.workload.seed << 8 | 0x81);
        let mut log = Recorder::append("java", stage.logs.join("java")).unwrap();
        let mut peer = self.0.lock();
        while stage.goes_on_after(PAUSE, &mut random) {
            let key = stage.workload.key(random.u64(..stage.workload.locks));
            let row = hex(&row(stage.client_id, &key));
            let (wait, called) = (Duration::ZERO, Moment::now());
            let id = log.call(&key, Operation::Acquire { ttl: TTL, wait, mode: Mode::Exclusive });
            let asked = peer.try_ask(&format!("acquire {TABLE} {row} {}", TTL.as_millis()));
            let answer = match asked.as_str() {
                "acquired" if peer.try_ask(&format!("value {TABLE} {row}")) == HELD => {
                    stage.incidents.count("grants of a Java service");
                    Answer::Granted { fence: None, ends: called }
                }
                // The server hides its record under one with a later timestamp, until that one expires. The Java
                // library does not see that, and would delete the lock of another holder now: see
                // docs/guarantees.md.
                "acquired" => {
                    stage.incidents.count("hidden grants of a Java service");
                    Answer::Failed { code: "HIDDEN".to_owned() }
                }
                "unavailable" => Answer::No,
                _ => Answer::InDoubt,
            };
            log.returned(&id, answer.clone());
            if matches!(answer, Answer::Granted { .. }) {
                std::thread::sleep(HOLDS.mul_f64(random.f64()));
                release(&mut peer, &mut log, &key, &row, &id, called);
            }
        }
    }
}

fn release(
    peer: &mut Peer,
    log: &mut Recorder<std::fs::File>,
    key: &str,
    row: &str,
    lease: &CallId,
    since: Moment,
) {
    // After a long pause of the machine it lets the lease expire. Its request may take most of the TTL.
    if Moment::now().since(since) > TTL / 4 {
        return;
    }
    let release = log.call(key, Operation::Release { lease: lease.clone() });
    let answer = match peer.try_ask(&format!("release {TABLE} {row}")).as_str() {
        "ok" => Answer::Ok,
        _ => Answer::InDoubt,
    };
    log.returned(&release, answer);
}

/// Returns the row of a lock as the Java library computes it.
pub(crate) fn row(client_id: &str, key: &str) -> Vec<u8> {
    let key = format!("XDC#{client_id}#{key}");
    let hash = key.bytes().fold(1i32, |x, byte| x.wrapping_mul(31).wrapping_add(i32::from(byte as i8)));
    [&[hash.unsigned_abs() as u8], key.as_bytes()].concat()
}
