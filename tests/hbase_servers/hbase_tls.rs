//! HBase over TLS: a real server that requires client certificates.
#![cfg(feature = "hbase")]

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use dlm::{Code, Deadline, Error, LatchKind, Level, LockManager, Moment};
use dlm_fixtures::hbase::{Hbase, Kind};
use dlm_testkit::left_to_the_long_run;

/// Time limit of steps that take seconds. A slow machine must not fail a test.
const LONG: Duration = Duration::from_secs(120);
/// Time-out of calls that are refused long before.
const LONGEST: Duration = Duration::from_secs(600);

/// One server for all cases, because it takes ten seconds to start.
#[test]
fn tls_lets_in_who_has_the_certificates_and_tells_others_what_they_lack() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = Hbase::private_of("tls", Kind::Tls) else { return };
    let place = Place { master: format!("localhost:{}", hbase.master.port()), dir: hbase.tls_dir() };
    let good = place.uri("ca", Some("client"));
    works_and_reconnects(&hbase, &good);

    // The server closes the connection without an answer. A server that is starting may do this too, so the library
    // retries until the deadline.
    // On a slow machine, a short deadline may be over before.
    let uri = format!("hbase://{}/locks", place.master);
    let names_the_option = |timeout| place.refused(&uri, timeout).contains("tls=on");
    assert!([LONG / 12, LONG].into_iter().any(names_the_option), "the option tls=on is not named");

    let begin = Moment::now();
    let bare = place.refused(&place.uri("ca", None), LONGEST);
    assert!(bare.contains("certificate"), "{bare}");
    let unknown = place.refused(&place.uri("ca", Some("stranger")), LONGEST);
    assert!(unknown.contains("certificate"), "{unknown}");
    let untrusted = place.refused(&place.uri("stranger", Some("client")), LONGEST);
    assert!(untrusted.contains("UnknownIssuer"), "{untrusted}");
    // The server's certificate is for localhost.
    let other_name = Place { master: hbase.master.to_string(), dir: place.dir.clone() };
    let misnamed = other_name.refused(&other_name.uri("ca", Some("client")), LONGEST);
    assert!(misnamed.contains("not valid for name"), "{misnamed}");
    assert!(Moment::now().since(begin) < LONGEST / 2, "a refusal was retried until the deadline");
}

/// The opposite case: the client uses TLS, but the server does not.
#[test]
fn tls_is_never_left_out_because_a_server_does_not_speak_it() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = dlm_fixtures::hbase::hbase_or_skip() else { return };
    let dir = tempfile::tempdir().unwrap();
    // Any certificate will do, because none is compared.
    let ca = dir.path().join("ca.pem");
    let made = std::process::Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=x",
            "-keyout",
            "/dev/null",
        ])
        .arg("-out")
        .arg(&ca)
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("*** SKIPPED, it did not run: no openssl");
        return;
    }
    let uri = format!("hbase://localhost:{}/locks?tls=on&tls_ca={}", hbase.master.port(), ca.display());
    let begin = Moment::now();
    let refused = Place::try_lock(&uri, LONG).unwrap_err();
    assert_eq!(refused.code(), Code::ConnectionError, "{}", refused.chain());
    assert!(refused.chain().contains("TLS"), "{}", refused.chain());
    println!("TLS to a plain port: {} after {:?}", refused.chain(), Moment::now().since(begin));
}

fn works_and_reconnects(hbase: &Hbase, uri: &str) {
    let builder = LockManager::builder().store_uri(uri).client("tls").farm("dc1");
    let manager = builder.timeout(LONGEST).ttl(LONGEST).wait(LONGEST).open().unwrap();
    manager.initialize().unwrap();
    // A request that takes many TLS records.
    let crowd = manager.latch("crowd", Level::Dc, LatchKind::CountDown).unwrap();
    let names: Vec<_> = (0..5_000).map(|number| format!("{number:0>40}")).collect();
    crowd.create_for(&names).unwrap();
    assert!(crowd.pending().unwrap() == names);
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let lease = lock.acquire_with_ttl(10 * LONG).unwrap();
    lease.renew().unwrap();
    assert_eq!(lock.try_acquire().unwrap_err().code(), Code::LockUnavailable);
    super::share_a_socket(&manager);
    hbase.kill();
    hbase.start();
    let deadline = Deadline::after(LONGEST);
    while let Err(error) = lease.renew() {
        assert!(!deadline.passed(), "not reconnected: {}", error.chain());
        thread::sleep(Duration::from_millis(200));
    }
    assert!(lease.release().unwrap());
    manager.close().unwrap();
}

struct Place {
    master: String,
    dir: PathBuf,
}

impl Place {
    fn uri(&self, ca: &str, own: Option<&str>) -> String {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let own = own.map(|own| {
            format!("&tls_cert={}&tls_key={}", file(&format!("{own}.pem")), file(&format!("{own}.key")))
        });
        let ca = file(&format!("{ca}.pem"));
        let own = own.unwrap_or_default();
        format!("hbase://{}/locks?tls=on&connect_timeout=1m&tls_ca={ca}{own}", self.master)
    }

    /// Tries to lock with a URI that must be refused. Returns the error.
    fn refused(&self, uri: &str, timeout: Duration) -> String {
        let begin = Moment::now();
        let error = Place::try_lock(uri, timeout).expect_err(uri);
        println!("{} after {:?}", error.chain(), Moment::now().since(begin));
        assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
        error.chain()
    }

    fn try_lock(uri: &str, timeout: Duration) -> Result<(), Error> {
        let manager = LockManager::builder().store_uri(uri).client("tls").timeout(timeout).open()?;
        manager.lock("b", Level::Xdc)?.try_acquire().map(drop)
    }
}
