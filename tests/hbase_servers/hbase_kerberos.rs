//! HBase with Kerberos: real servers and a real KDC, in a realm of their own.
//!
//! The library for Kerberos reads from the environment which realm there is. So the cases run in processes of their own.
#![cfg(feature = "hbase")]

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::hbase::{Cells, Creation, Family, Table};
use dlm::{Code, Error, LatchKind, Level, LockManager, Moment, Severity};
use dlm_fixtures::dialogue::{Dialogue, next_order, say};
use dlm_fixtures::hbase::{Hbase, Kind};
use dlm_fixtures::role;
use dlm_testkit::contract::Site;
use dlm_testkit::{left_to_the_long_run, skipped, until};
use parking_lot::Mutex;

/// Time-out of calls that are refused long before.
const LONGEST: Duration = Duration::from_secs(600);
/// A lock whose name is looked for in what is sent.
const NAME: &str = "a-name-to-be-hidden";
/// The address of the server.
const SERVER: &str = "DLM_TEST_KERBEROS_SERVER";

/// Entry point of the processes of these tests.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, dir)) = role::asked() else { return };
    let place = Place { master: env::var(SERVER).unwrap(), dir };
    match role.as_str() {
        "prepare" => open(&place.good()).unwrap().initialize().unwrap(),
        "use it" => use_it(&place),
        "hold for long" => hold_for_long(&place),
        "name a lock" => name_a_lock(&place),
        "be refused" => be_refused(&place),
        "be refused without Kerberos" => be_refused_without(&place),
        role => panic!("no role {role:?}"),
    }
}

/// Where the server is, and the directory with its keys.
struct Place {
    master: String,
    dir: PathBuf,
}

impl Place {
    fn of(hbase: &Hbase) -> Place {
        Place {
            master: format!("localhost:{}", hbase.master.port()),
            dir: hbase.krb5_conf().parent().unwrap().to_owned(),
        }
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn keytab(&self, name: &str) -> String {
        self.file(&format!("keytabs/{name}.keytab"))
    }

    fn uri(&self, options: &str) -> String {
        format!("hbase://{}/locks?connect_timeout=1m&{options}", self.master)
    }

    fn good(&self) -> String {
        self.uri(&format!("auth=kerberos&keytab={}&principal=alice", self.keytab("alice")))
    }

    fn in_realm<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("KRB5_CONFIG", self.dir.join("krb5.conf"))
            .env(SERVER, &self.master)
            .env_remove("KRB5CCNAME")
    }

    /// Runs this program in the realm.
    fn run(&self, command: &mut Command) -> String {
        let output = self.in_realm(command).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{said}", output.status);
        said
    }

    /// Returns whether what a process in the realm sends and receives has the name of its lock somewhere.
    fn shows_names(&self) -> bool {
        let (trace, process) =
            (self.dir.join("trace"), role::process(module_path!(), "name a lock", &self.dir));
        let mut strace = Command::new("strace");
        strace.args(["-f", "-s", "1000000", "-e", "trace=network,read,write,readv,writev", "-o"]).arg(&trace);
        strace.arg(process.get_program()).args(process.get_args()).current_dir(&self.dir);
        strace.envs(process.get_envs().map(|(key, value)| (key, value.unwrap_or_default())));
        self.run(&mut strace);
        let trace = fs::read_to_string(trace).unwrap();
        // The handshake is never hidden.
        assert!(trace.contains("HBas"), "no connection was seen");
        trace.contains(NAME)
    }

    fn run_role(&self, role: &str) {
        self.run(&mut role::process(module_path!(), role, &self.dir));
    }

    /// Runs the tests of a module in the realm, and returns how many passed.
    fn run_suite(&self, module: &str) -> usize {
        let mut command = Command::new(env::current_exe().unwrap());
        let suite = role::test_in(module_path!(), module);
        let said = self.run(
            command.args([&format!("{suite}::"), "--ignored", "--test-threads=4"]).current_dir(&self.dir),
        );
        let passed = said
            .lines()
            .find_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse().ok());
        passed.unwrap_or_else(|| panic!("{said}"))
    }
}

fn open(uri: &str) -> dlm::Result<LockManager> {
    LockManager::builder().store_uri(uri).client("kerberos").farm("dc1").timeout(LONGEST).ttl(LONGEST).open()
}

/// Returns the error of a URI that must be refused.
fn refused(uri: &str) -> Error {
    let begin = Moment::now();
    let tried = open(uri).and_then(|manager| manager.lock("b", Level::Xdc)?.try_acquire().map(drop));
    let error = tried.expect_err(uri);
    println!("{} after {:?}", error.chain(), Moment::now().since(begin));
    assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
    assert!(Moment::now().since(begin) < LONGEST / 2, "a refusal was retried until the deadline");
    error
}

/// One server for all cases, because it takes ten seconds to start.
#[test]
fn a_ticket_lets_in_and_who_has_none_is_told_why() {
    let Some(hbase) = Hbase::private_of("kerberos", Kind::Kerberos("privacy")) else { return };
    let place = Place::of(&hbase);
    place.run_role("use it");
    place.run_role("be refused");
    changed_bits_end_the_connection(&place);
    // After the server has started again, with the same keys.
    hbase.kill();
    hbase.start();
    place.run_role("use it");
    if !has_strace() {
        return skipped("strace", "strace is not installed, or may not trace");
    }
    assert!(!place.shows_names(), "the name of a lock was sent as it is");
}

fn use_it(place: &Place) {
    let manager = open(&place.good()).unwrap();
    manager.initialize().unwrap();
    // A request that takes many tokens, and a reply that does.
    let crowd =
        manager.latch(&format!("crowd-{}", std::process::id()), Level::Dc, LatchKind::CountDown).unwrap();
    let names: Vec<_> = (0..5_000).map(|number| format!("{number:0>40}")).collect();
    crowd.create_for(&names).unwrap();
    assert!(crowd.pending().unwrap() == names);
    let lease = manager.lock("a", Level::Xdc).unwrap().acquire().unwrap();
    lease.renew().unwrap();
    // Somebody else, with a ticket of the process's cache.
    let cache = format!("FILE:{}", place.file("bob.cache"));
    let kinit = Command::new("kinit").args(["-c", &cache, "-k", "-t", &place.keytab("bob"), "bob"]).status();
    assert!(kinit.unwrap().success());
    let bob = open(&place.uri(&format!("auth=kerberos&ticket_cache={cache}"))).unwrap();
    assert_eq!(bob.lock("a", Level::Xdc).unwrap().try_acquire().unwrap_err().code(), Code::LockUnavailable);
    assert!(lease.release().unwrap());
    super::share_a_socket(&manager);
    for (manager, whose) in [(&manager, "alice@DLM.TEST"), (&bob, "bob@DLM.TEST")] {
        let found = manager.diagnose().unwrap();
        let login = found.iter().find(|diagnostic| diagnostic.topic == "Kerberos").unwrap();
        assert_eq!(login.severity, Severity::Ok, "{login:?}");
        assert!(login.seen.contains(whose) && login.seen.contains("protection privacy"), "{login:?}");
    }
    let uri = place.good().replace("/locks?", "/rows?");
    let table = Table::open(&format!("{uri}&family=d&timeout=10m")).unwrap();
    table.create_if_missing(&[Family::new("d")], &[]).unwrap();
    let row = table.row(format!("r{}", std::process::id()));
    assert_eq!(row.create(&Cells::new().put("d:a", "1")).unwrap(), Creation::Created);
    manager.close().unwrap();
}

fn name_a_lock(place: &Place) {
    let manager = open(&place.good()).unwrap();
    let lock = manager.lock(NAME, Level::Xdc).unwrap();
    // Until the tables are there, nothing is sent that has the name.
    manager.initialize().unwrap();
    let lease = lock.acquire().unwrap();
    assert_eq!(lock.try_acquire().unwrap_err().code(), Code::LockUnavailable);
    assert!(lease.release().unwrap());
    assert!(lock.try_acquire().unwrap().release().unwrap());
}

/// A bit of the first message after the handshake changes on its way, in either direction. The library connects again.
fn changed_bits_end_the_connection(place: &Place) {
    for to_server in [true, false] {
        let proxy = BitChanger::before(&place.master, to_server);
        let through = Place { master: format!("localhost:{}", proxy.address.port()), dir: place.dir.clone() };
        through.run_role("name a lock");
        assert_eq!(proxy.changed.load(Ordering::SeqCst), 1, "to the server: {to_server}");
        assert!(proxy.connections.load(Ordering::SeqCst) > 1, "it was not connected again");
    }
}

/// A proxy that changes one bit of one connection, after the handshake.
struct BitChanger {
    address: SocketAddr,
    connections: &'static AtomicUsize,
    changed: &'static AtomicUsize,
}

impl BitChanger {
    /// It goes on until this process ends.
    fn before(server: &str, to_server: bool) -> BitChanger {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let [connections, changed] = [(); 2].map(|()| &*Box::leak(Box::new(AtomicUsize::new(0))));
        let (address, server) = (listener.local_addr().unwrap(), server.to_owned());
        thread::spawn(move || {
            for client in listener.incoming() {
                connections.fetch_add(1, Ordering::SeqCst);
                let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
                let replies: &AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || {
                    let mut sent = 0;
                    pass(&from, &to, |bytes| {
                        // The last message of the handshake, which answers the second reply, is shorter.
                        sent += if replies.load(Ordering::SeqCst) == 2 { bytes.len() } else { 0 };
                        if to_server && sent > 150 && changed.swap(1, Ordering::SeqCst) == 0 {
                            *bytes.last_mut().unwrap() ^= 1;
                        }
                    })
                });
                thread::spawn(move || {
                    pass(&server, &client, |bytes| {
                        let before = replies.fetch_add(1, Ordering::SeqCst);
                        if !to_server && before == 2 && changed.swap(1, Ordering::SeqCst) == 0 {
                            *bytes.last_mut().unwrap() ^= 1;
                        }
                    })
                });
            }
        });
        BitChanger { address, connections, changed }
    }
}

/// Passes on what comes, until one side ends.
fn pass(mut from: &TcpStream, mut to: &TcpStream, mut change: impl FnMut(&mut [u8])) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut bytes).unwrap_or(0);
        if count == 0 {
            let _ = to.shutdown(Shutdown::Both);
            return from.shutdown(Shutdown::Both);
        }
        change(&mut bytes[..count]);
        to.write_all(&bytes[..count])?;
    }
}

fn has_strace() -> bool {
    Command::new("strace").args(["-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success())
}

fn be_refused(place: &Place) {
    let keytab = place.keytab("alice");
    let by_keytab = |more: &str| place.uri(&format!("auth=kerberos&keytab={keytab}&{more}"));
    let expired = format!("FILE:{}", place.file("expired.cache"));
    let kinit = ["-l", "1s", "-c", &expired, "-k", "-t", &place.keytab("bob"), "bob"];
    assert!(Command::new("kinit").args(kinit).status().unwrap().success());
    thread::sleep(Duration::from_secs(3));
    let by_ip = format!("hbase://127.0.0.1:{}/locks", place.master.split_once(':').unwrap().1);
    for (uri, why) in [
        (place.uri(""), "auth=kerberos"),
        (place.uri("auth=kerberos&ticket_cache=FILE:/none"), "run kinit"),
        (place.uri(&format!("auth=kerberos&ticket_cache={expired}")), "Ticket expired"),
        (by_keytab("principal=carol"), "may lack the principal"),
        (by_keytab("server_principal=hb/_HOST"), "the realm does not know the server"),
        (by_keytab("server_principal=bob"), "GSS initiate failed"),
        (by_keytab("server_principal=hbase/_HOST@OTHER.TEST"), "OTHER.TEST"),
        (format!("{by_ip}?auth=kerberos&keytab={keytab}"), "the realm does not know the server"),
        (place.uri("auth=kerberos&keytab=/none"), "/none"),
        (place.uri(&format!("auth=kerberos&keytab={}", place.file("krb5.conf"))), "may lack the principal"),
    ] {
        let error = refused(&uri).chain();
        assert!(error.contains(why), "{uri}: {error}");
    }
}

/// The tickets last for 20 s. The lease is kept alive over the connection that is there, then over others with new tickets.
#[test]
fn a_lease_outlives_the_tickets_the_kdc_and_the_server() {
    if left_to_the_long_run() {
        return;
    }
    let tickets = [("DLM_TEST_TICKETS", "20s".into())];
    let Some(hbase) = Hbase::private_in("kerberos-tickets", Kind::Kerberos("integrity"), &tickets) else {
        return;
    };
    let place = Place::of(&hbase);
    let mut command = role::process(module_path!(), "hold for long", &place.dir);
    let mut holder = Dialogue::start(place.in_realm(&mut command));
    holder.report("held");
    let mut ask = |order: &str| {
        holder.order(order);
        holder.any_report()
    };
    let first = ask("connections");
    thread::sleep(Duration::from_secs(70));
    let later = ask("connections");
    // That to the RegionServer. Others are not in use.
    assert!(later.iter().any(|port| !first.contains(port)), "{first:?}, and 70 s later {later:?}");
    assert_eq!(ask("check"), ["ok"], "after its tickets ended");
    hbase.stop_kdc();
    thread::sleep(Duration::from_secs(30));
    assert_eq!(ask("check"), ["ok"], "without a KDC, and all tickets ended");
    hbase.start_kdc();
    hbase.kill();
    hbase.start();
    assert_eq!(ask("recover"), ["ok"], "after the server started again");
    holder.finish();
}

fn hold_for_long(place: &Place) {
    let manager = open(&place.good()).unwrap();
    manager.initialize().unwrap();
    // No pause is as long as to leave a connection unused, and none of the errors is hidden.
    let lease = manager.lock("kept", Level::Xdc).unwrap().acquire_with_ttl(Duration::from_secs(60)).unwrap();
    let (errors, is_over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                if let Err(error) = lease.renew() {
                    errors.lock().push(error.chain());
                }
                thread::sleep(Duration::from_millis(500));
            }
        });
        say(format_args!("held"));
        while let Some(order) = next_order() {
            match order.as_str() {
                "connections" => say(format_args!("{}", own_ports().join(" "))),
                "check" if errors.lock().is_empty() => say(format_args!("ok")),
                "check" => say(format_args!("{}", errors.lock()[0])),
                // A server that has just started refuses for a while, so the lease may have ended.
                _ => {
                    let other = manager.lock("other", Level::Xdc).unwrap();
                    until("the server answers", || {
                        other.try_acquire().is_ok_and(|lease| lease.release().unwrap())
                    });
                    say(format_args!("ok"));
                }
            }
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

/// Returns the ports of the connections that this process has open.
fn own_ports() -> Vec<String> {
    let links =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let own: Vec<_> = links.map(|link| link.display().to_string()).collect();
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let open = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Local address, state, inode.
    open.filter(|line| line.len() > 9 && line[3] == "01" && own.contains(&format!("socket:[{}]", line[9])))
        .map(|line| line[1].to_owned())
        .collect()
}

/// What is refused by servers without Kerberos, or that protect too little.
#[test]
fn kerberos_and_its_protection_are_never_left_out_because_a_server_lacks_them() {
    let Some(plain) = dlm_fixtures::hbase::hbase_or_skip() else { return };
    let Some(hbase) = Hbase::private_of("kerberos-authentication", Kind::Kerberos("authentication")) else {
        return;
    };
    let place = Place::of(&hbase);
    let too_little =
        place.uri(&format!("auth=kerberos&keytab={}&protection=integrity", place.keytab("alice")));
    let plain = format!(
        "hbase://localhost:{}/locks?auth=kerberos&keytab={}&server_principal=hbase/localhost",
        plain.master.port(),
        place.keytab("alice")
    );
    if has_strace() {
        // This shows that the name is found where it is not hidden.
        assert!(place.shows_names(), "the name of a lock is nowhere in what was sent");
    }
    let mut command = role::process(module_path!(), "be refused without Kerberos", &place.dir);
    place.run(command.env("DLM_TEST_PLAIN", plain).env("DLM_TEST_TOO_LITTLE", too_little));
}

fn be_refused_without(place: &Place) {
    for (variable, why) in [("DLM_TEST_PLAIN", "has no Kerberos"), ("DLM_TEST_TOO_LITTLE", "asks for more")] {
        let error = refused(&env::var(variable).unwrap()).chain();
        assert!(error.contains(why), "{variable}: {error}");
    }
    // What the server offers is enough here.
    let manager = open(&place.good()).unwrap();
    manager.initialize().unwrap();
    let login =
        manager.diagnose().unwrap().into_iter().find(|diagnostic| diagnostic.topic == "Kerberos").unwrap();
    assert!(login.seen.contains("protection authentication"), "{login:?}");
    assert!(manager.lock("a", Level::Xdc).unwrap().try_acquire().unwrap().release().unwrap());
}

#[test]
fn the_contract_holds_over_each_protection() {
    if left_to_the_long_run() {
        return;
    }
    for protection in ["privacy", "integrity", "authentication"] {
        let Some(hbase) = Hbase::private_of(protection, Kind::Kerberos(protection)) else { return };
        let place = Place::of(&hbase);
        place.run_role("prepare");
        let passed = place.run_suite("within");
        assert!(passed > 40, "{protection}: only {passed} cases");
    }
}

/// Cases for a process in the realm.
mod within {
    use super::*;

    fn site(test: &str) -> Site {
        let place = Place { master: env::var(SERVER).unwrap(), dir: env::current_dir().unwrap() };
        let uri = place.good();
        Site::new(test, 40, move || dlm::store::open(&uri).unwrap()).with_many_reads()
    }

    dlm_testkit::contract! { #[ignore = "a case for a process of the tests"] site }
}
