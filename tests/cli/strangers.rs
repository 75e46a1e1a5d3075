//! Stores whose address is wrong: another service answers there, or nobody. Each is named within a second or two, whatever
//! the scheme of the store and the verb are, and no request that could change something is sent to a stranger.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use dlm::{Code, Level, LockManager};
use dlm_testkit::{LONG, until};

use super::{Running, Shell};

/// The store time-out with a server that says nothing, which takes all of it.
const BRIEF: &str = "timeout=1500ms";
/// The store time-out with a server that says something. It is not used up: each command ends when it knows who answers,
/// and a busy machine may be late with that.
const PATIENT: &str = "timeout=60s";

/// Serves each connection with `answer` until the test program ends.
fn serve(answer: fn(TcpStream) -> std::io::Result<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
    address.to_string()
}

fn http(mut stream: TcpStream) -> std::io::Result<()> {
    stream.read_exact(&mut [0; 4])?;
    stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
}

/// Answers each line, as Redis does with commands that it does not know. It waits for the end of a binary message.
fn redis(mut stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        if line.trim_ascii().is_empty() {
            continue;
        }
        stream.write_all(b"-ERR unknown command\r\n")?;
        line.clear();
    }
    Ok(())
}

fn silent(mut stream: TcpStream) -> std::io::Result<()> {
    while stream.read(&mut [0; 512])? > 0 {}
    Ok(())
}

/// What Thrift servers of another interface were asked for by any test of this file.
static ASKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Asserts that strangers were only asked what changes nothing.
fn were_only_greeted() {
    let asked = ASKED.lock().unwrap();
    let harmless = |method: &String| ["getThriftServerType", "getColumnDescriptors"].contains(&&**method);
    assert!(!asked.is_empty() && asked.iter().all(harmless), "{asked:?}");
}

/// A Thrift server of another interface: it knows none of the methods. Closes what is not Thrift.
fn thrift2(mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let mut head = [0; 8];
        stream.read_exact(&mut head)?;
        if head[..2] != [0x80, 1] {
            return Ok(());
        }
        let mut rest = vec![0; u32::from_be_bytes(head[4..].try_into().unwrap()) as usize + 4];
        stream.read_exact(&mut rest)?;
        let (name, number) = rest.split_at(rest.len() - 4);
        ASKED.lock().unwrap().push(String::from_utf8_lossy(name).into_owned());
        loop {
            let mut kind = [0];
            stream.read_exact(&mut kind)?;
            if kind == [0] {
                break;
            }
            if kind != [11] {
                // Greetings have texts and nothing else.
                ASKED.lock().unwrap().push(format!("an argument of type {}", kind[0]));
                return Ok(());
            }
            let mut field = [0; 6];
            stream.read_exact(&mut field)?;
            let length = u32::from_be_bytes(field[2..].try_into().unwrap());
            stream.read_exact(&mut vec![0; length as usize])?;
        }
        let text = b"Invalid method name";
        let exception =
            [&[11, 0, 1][..], &(text.len() as u32).to_be_bytes(), text, &[8, 0, 2, 0, 0, 0, 1, 0]];
        let header = [&[0x80, 1, 0, 3][..], &(name.len() as u32).to_be_bytes(), name, number].concat();
        stream.write_all(&[header, exception.concat()].concat())?;
    }
}

/// Returns an address where nothing listens. The port stays bound, so that no other test gets it.
fn refused() -> (rustix::fd::OwnedFd, String) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, address.to_string())
}

/// Returns what an error says about an unknown host. A machine without a name service cannot say that there is none.
fn unknown_host() -> &'static str {
    let error = ("no-such-host.invalid", 16000).to_socket_addrs().unwrap_err().to_string();
    match error.contains("not known") {
        true => "the host of no-such-host.invalid:16000 is not known",
        false => "no-such-host.invalid:16000 cannot be reached",
    }
}

/// Closes each connection, as a proxy does while its server starts.
fn closes(stream: TcpStream) -> std::io::Result<()> {
    stream.shutdown(std::net::Shutdown::Both)
}

/// A store with a wrong address.
struct WrongStore {
    /// With no option.
    uri: String,
    timeout: &'static str,
    /// What an error says about it.
    said: &'static str,
}

/// A wrong address of each kind for each scheme. With the port where nothing listens.
fn wrong_stores() -> (Vec<WrongStore>, rustix::fd::OwnedFd) {
    let (port, refused) = refused();
    let has_names = unknown_host().contains("not known");
    let kinds = [
        (serve(http), "an HTTP server answers at", PATIENT),
        (serve(redis), "Redis answers at", PATIENT),
        (serve(silent), "accepts connections and answers nothing", BRIEF),
        (refused, "nothing listens at", PATIENT),
        ("no-such-host.invalid:16000".into(), unknown_host(), if has_names { PATIENT } else { BRIEF }),
        (serve(thrift2), "a Thrift server", PATIENT),
    ];
    let of = |(address, said, timeout): &(String, &'static str, &'static str)| {
        let uris = [
            format!("hbase://{address}/t"),
            format!("hbase+thrift://{address}/t"),
            format!("aerospike://{address}/test/t"),
        ];
        let (said, timeout) = (*said, *timeout);
        uris.map(|uri| WrongStore { uri, timeout, said })
    };
    (kinds.iter().flat_map(of).collect(), port)
}

#[test]
fn the_first_call_of_the_tool_names_who_answers_and_is_never_in_doubt() {
    let verbs: [(&[&str], i32); 4] = [
        (&["run", "--wait", "60s", "x", "--", "true"], 69),
        (&["init"], 69),
        (&["latch", "down", "x"], 69),
        (&["doctor"], 78),
    ];
    let (stores, _port) = wrong_stores();
    thread::scope(|scope| {
        for WrongStore { uri, timeout, said } in &stores {
            scope.spawn(move || {
                for (verb, status) in verbs {
                    let shell = Shell::on(format!("{uri}?{timeout}"));
                    let began = Instant::now();
                    let child = shell.dlm(verb).env("DLM_FARM", "dc1").spawn().unwrap();
                    let done = Running(Some(child)).finish();
                    let what = format!("{uri} {verb:?}: {}{}", done.out, done.err);
                    assert!(began.elapsed() < LONG, "{:?} {what}", began.elapsed());
                    assert_eq!(done.status.code(), Some(status), "{what}");
                    let text = if status == 78 { &done.out } else { &done.err };
                    assert!(text.contains(said) && !text.contains("in doubt"), "{what}");
                    assert!(status == 78 || done.err.lines().count() == 1, "{what}");
                    assert!(!text.contains("waiting in the queue"), "{what}");
                }
            });
        }
    });
    were_only_greeted();
}

/// The server behind may start meanwhile, so whoever waits for the lock goes on.
#[test]
fn a_port_that_closes_every_connection_ends_no_wait() {
    let address = serve(closes);
    thread::scope(|scope| {
        for uri in [
            format!("hbase://{address}/t"),
            format!("hbase+thrift://{address}/t"),
            format!("aerospike://{address}/test/t"),
        ] {
            scope.spawn(move || {
                let shell = Shell::on(format!("{uri}?{BRIEF}"));
                let run = ["--farm", "dc1", "run", "--wait", "1s", "x", "--", "true"];
                // A busy machine may close a connection too late for one command.
                until("nobody was said to close connections", || {
                    let began = Instant::now();
                    let line = shell.run(&run).fails_with(69);
                    let took = began.elapsed();
                    assert!(took >= Duration::from_millis(900), "{uri}: {took:?} {line}");
                    line.contains("closes connections without an answer")
                });
            });
        }
    });
}

/// A service may start before its store, so its first acquire tries as long as always. Its error names the cause.
#[test]
fn the_library_names_the_cause_and_its_first_contact_does_not_wait_for_it() {
    let (stores, _port) = wrong_stores();
    thread::scope(|scope| {
        for WrongStore { uri, timeout, said } in &stores {
            scope.spawn(move || {
                let open = |timeout: &str| {
                    let builder = LockManager::builder().store_uri(&format!("{uri}?{timeout}"));
                    builder.client("tests").farm("dc1").open().unwrap()
                };
                let line = |error: dlm::Error| {
                    let line = error.to_string();
                    assert_eq!(error.code(), Code::ConnectionError, "{uri}: {line}");
                    assert!(!line.contains('\n'), "{uri}: {line}");
                    line
                };
                let manager = open(timeout);
                let began = Instant::now();
                let errors = [
                    manager.initialize().unwrap_err(),
                    manager.reach(LONG).unwrap_err(),
                    manager.initialize_latches().unwrap_err(),
                ];
                assert!(began.elapsed() < LONG, "{uri}: {:?}", began.elapsed());
                for error in errors {
                    let line = line(error);
                    assert!(line.contains(said), "{uri}: {line}");
                }
                let found = manager.diagnose().unwrap();
                assert!(found[0].to_string().contains(said), "{uri}: {}", found[0]);
                // Looks for a moment only, in which a busy machine may see nobody.
                let lock = open(BRIEF).lock("x", Level::Xdc).unwrap();
                until("the cause was never named", || line(lock.acquire().unwrap_err()).contains(said));
            });
        }
    });
    were_only_greeted();
}

/// The nodes are asked for their partitions first, which takes all of so little time.
#[test]
fn a_request_whose_time_goes_by_before_it_is_sent_names_the_cause() {
    let uri = format!("aerospike://{}/test/t?timeout=500ms", serve(silent));
    let manager = LockManager::builder().store_uri(&uri).client("tests").farm("dc1").open().unwrap();
    let error = manager.lock("x", Level::Xdc).unwrap().inspect().unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError, "{error}");
    assert!(error.to_string().contains("accepts connections and answers nothing"), "{error}");
}
