//! Wrong usage, stores that cannot be reached, help and diagnosis: exit statuses and messages.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Stdio;

use super::Shell;

#[test]
fn bad_input_is_refused_with_64_and_one_line() {
    let shell = Shell::new();
    let long = "x".repeat(1025);
    let client = ["--client", "a#b", "show", "x"];
    let cases: &[&[&str]] = &[
        &[],
        &["rnu", "x"],
        &["run", "x"],
        &["run", "--", "true"],
        &["run", "x", "true"],
        &["run", "x", "--"],
        &["acquire", ""],
        &["acquire", &long],
        &["acquire", "--ttl", "90", "x"],
        &["acquire", "--ttl", "0s", "x"],
        &["acquire", "--ttl", "400d", "x"],
        &["acquire", "--retry", "0s", "x"],
        &["acquire", "--wait", "soon", "x"],
        &["acquire", "--wait", "1s", "--no-wait", "x"],
        &["acquire", "-E", "256", "x"],
        &["acquire", "--level", "dcc", "x"],
        &client,
        &["--client", "", "show", "x"],
        &["--farm", "a\nb", "show", "x"],
        &["--store", "redis://localhost", "show", "x"],
        &["--store", "embedded:?tll=1s", "show", "x"],
        &["--store", "embedded:relative", "show", "x"],
        &["--store", "hbase+thrift://127.0.0.1:1/t", "show", "x"],
        &["renew", "not-a-lease"],
        &["renew", "--ttl", "0s", "dlm2."],
        &["release", "dlm2.00"],
        &["release"],
        &["demo", "--workers", "0"],
        &["demo", "--workers", "27"],
        &["demo", "--seconds", "1", "--rounds", "1"],
        &["--store", "memory:", "demo"],
    ];
    for args in cases {
        let line = shell.run(args).fails_with(64);
        assert!(line.len() < 500, "{line}");
    }
    let mut command = shell.dlm(&["show", "x"]);
    let done = super::Running(Some(command.env("DLM_LOG", "loud").spawn().unwrap())).finish();
    assert!(done.fails_with(64).contains("DLM_LOG"));
}

#[test]
fn a_usage_error_says_which_word_is_wrong_and_what_it_should_be() {
    let shell = Shell::new();
    for (args, told) in [
        (
            &["run", "x", "echo", "hi"][..],
            "put -- before the command: dlm run NAME -- COMMAND; see `dlm run --help`",
        ),
        (&["run", "x"], "dlm run NAME -- COMMAND; see `dlm run --help`"),
        (&["rnu", "x"], "there is no command 'rnu'; did you mean run?; see `dlm --help`"),
        (&["latch", "donw", "x"], "there is no command 'donw'; did you mean down?; see `dlm latch --help`"),
        (&["__exe", "x"], "there is no command '__exe'; see"),
        (
            &["acquire", "--ttl", "500d", "x"],
            "'500d' for '--ttl <TIME>': 1ms to 365d; see `dlm acquire --help`",
        ),
        (&["--client", "", "show", "x"], "--client is empty"),
        (&["--store", "embedded", "show", "x"], "a colon after the scheme"),
        (&["--store", "embedded:rel/dir", "show", "x"], "an absolute path"),
        (&["--store", "hbase://localhost:16000", "show", "x"], "the table is missing"),
        (&["--store", "redis://x", "show", "x"], "one of memory, embedded, hbase, hbase+thrift"),
        (&["--store", "memory:", "run", "x", "--", "true"], "excludes no other `dlm`"),
        (&["--store", "memory:", "acquire", "x"], "excludes no other `dlm`"),
    ] {
        let line = shell.run(args).fails_with(64);
        assert!(line.contains(told) && !line.contains("   ") && !line.contains("\\n"), "{args:?}: {line}");
    }
    for variable in ["DLM_STORE", "DLM_CLIENT", "DLM_FARM"] {
        let mut command = shell.dlm(&["show", "x"]);
        let done = super::Running(Some(command.env(variable, "").spawn().unwrap())).finish();
        assert!(done.fails_with(64).contains(&format!("{variable} is set and empty")));
    }
    let help = shell.run(&["help", "latch", "down"]).ok().out;
    assert!(
        help.contains("Usage: dlm latch down") && shell.run(&["help"]).ok().out.contains("Usage: dlm"),
        "{help}"
    );
}

/// The inner `dlm` would wait for the outer one, which waits for it.
#[test]
fn a_command_that_waits_for_the_lock_around_it_is_told_so() {
    let shell = Shell::new();
    let inner = format!("{} acquire --no-wait job", env!("CARGO_BIN_EXE_dlm"));
    let line = shell.run(&["run", "job", "--", "sh", "-c", &format!("{inner}; exit $?")]).fails_with(75);
    assert!(line.contains("runs this command, so it waits for itself"), "{line}");
    shell.acquire("other");
    let line = shell.run(&["acquire", "--no-wait", "other"]).fails_with(75);
    assert!(!line.contains("itself"), "{line}");
}

#[test]
fn a_lease_is_not_lost_in_a_closed_output() {
    let shell = Shell::new();
    let dlm = env!("CARGO_BIN_EXE_dlm");
    let run = |script: &str| {
        let command = shell.dlm(&[]);
        let set: Vec<_> =
            command.get_envs().map(|(key, value)| (key.to_owned(), value.map(ToOwned::to_owned))).collect();
        let mut sh = std::process::Command::new("sh");
        for (key, value) in set {
            match value {
                Some(value) => sh.env(key, value),
                None => sh.env_remove(key),
            };
        }
        sh.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        super::Running(Some(sh.spawn().unwrap())).finish()
    };
    assert!(run(&format!("{dlm} acquire job >&-")).fails_with(70).contains("closed"));
    assert!(!shell.is_held("job"));
    run(&format!("{dlm} acquire job >/dev/null")).ok();
    assert!(shell.is_held("job"));
    assert!(run(&format!("{dlm} show job >&-")).ok().out.is_empty());
}

#[test]
fn a_terminal_cannot_be_coloured_nor_a_log_line_forged_by_an_argument() {
    let shell = Shell::new();
    let line = shell.run(&["show", "x", "\x1b[31m\ndlm: all is well"]).fails_with(64);
    assert!(!line.contains('\x1b'), "{line:?}");
    let line = shell.run(&["--store", "\x1b[31m\nx:", "show", "x"]).fails_with(64);
    assert!(!line.contains('\x1b'), "{line:?}");
}

#[test]
fn a_lease_line_is_in_no_error_message() {
    let shell = Shell::new();
    let lease = shell.acquire("job");
    let secret = &lease["dlm3.".len()..];
    let cut = &lease[..lease.len() - 2];
    let far = "hbase+thrift://127.0.0.1:1/t";
    let cases: &[(&[&str], i32)] = &[
        (&["release", "x", &lease], 64),
        (&["renew", "--ttl", &lease, "x"], 64),
        (&["release", cut], 64),
        (&[&lease], 64),
        (&["show", &format!("--{lease}")], 64),
        (&["--store", far, "release", &lease], 69),
        (&["--store", &lease, "show", "x"], 64),
    ];
    for (args, status) in cases {
        let line = shell.run(args).fails_with(*status);
        assert!(!line.contains(&secret[..40]), "{args:?}: {line}");
    }
    shell.run(&["release", &lease]).ok();
    let line = shell.run(&["release", &lease]).fails_with(77);
    assert!(!line.contains(&secret[..40]), "{line}");
}

#[test]
fn a_store_out_of_reach_is_69_and_says_so() {
    let shell = Shell::new();
    File::create(shell.path("file")).unwrap();
    let blocked = format!("embedded:{}", shell.path("file").join("store").display());
    // A port that was free a moment ago: connections are refused.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let closed = format!("hbase+thrift://127.0.0.1:{port}/locks?timeout=2s");
    for store in [&blocked, &closed] {
        let cases: &[&[&str]] = &[
            &["show", "--level", "xdc", "x"],
            &["acquire", "--level", "xdc", "x"],
            &["run", "--level", "xdc", "x", "--", "touch", "ran"],
            &["init"],
            &["demo", "--seconds", "1"],
        ];
        for args in cases {
            let args = [&["--store", store], *args].concat();
            let line = shell.run(&args).fails_with(69);
            assert!(line.contains("--store"), "{line}");
        }
    }
    assert!(!shell.path("ran").exists());
}

/// The gateway answers a greeting and no other request, so `dlm` cannot know whether the request was applied.
#[test]
fn a_lost_reply_is_74_and_the_command_does_not_run() {
    let gateway = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = gateway.local_addr().unwrap().port();
    // The thread ends with the test process.
    std::thread::spawn(move || {
        for connection in gateway.incoming() {
            let (mut connection, mut request) = (connection.unwrap(), [0; 4096]);
            let count = connection.read(&mut request).unwrap_or_default();
            // The number of the first request on a connection, and the result: a Thrift1 gateway.
            const GREETING: &[u8] = b"\0\0\0\x13getThriftServerType\0\0\0\x01";
            if request[4..count.max(4)].starts_with(GREETING) {
                let reply = [&[0x80, 1, 0, 2], GREETING, &[8, 0, 0, 0, 0, 0, 1, 0]].concat();
                let _ = connection.write_all(&reply);
            }
        }
    });
    let shell = Shell::new();
    // On a busy machine a short time may be over before the request is sent. Then nothing is in doubt.
    let in_doubt = ["500ms", "5s", "20s"].into_iter().find_map(|timeout| {
        let store = format!("hbase+thrift://127.0.0.1:{port}/locks?timeout={timeout}");
        let args = ["--store", &store, "run", "--level", "xdc", "--ttl", "60s", "x", "--", "touch", "ran"];
        let done = shell.run(&args);
        assert!(!shell.path("ran").exists());
        (done.status.code() != Some(69)).then_some(done)
    });
    let line = in_doubt.expect("no request was sent within 20 s").fails_with(74);
    assert!(line.contains("in doubt") && line.contains("TTL"), "{line}");
}

#[test]
fn a_store_shared_by_data_centres_wants_to_know_which() {
    let shell = Shell::new();
    let store = ["--store", "hbase+thrift://127.0.0.1:1/t"];
    let line = shell.run(&[&store[..], &["show", "x"]].concat()).fails_with(64);
    assert!(line.contains("--farm") && line.contains("xdc"), "{line}");
    shell.run(&[&store[..], &["--farm", "dc1", "show", "x"]].concat()).fails_with(69);
    shell.run(&["--store", "hbase+thrift://127.0.0.1:1/t?farm=dc1", "show", "x"]).fails_with(69);
}

#[test]
fn names_are_made_of_flag_before_variable_before_uri_before_default() {
    let shell = Shell::new();
    let lock = |args: &[&str], variable: Option<&str>, store: String| {
        let mut command = shell.dlm(&[args, &["show", "--json", "x"]].concat());
        command.env("DLM_STORE", store);
        if let Some(client) = variable {
            command.env("DLM_CLIENT", client);
        }
        let done = super::Running(Some(command.spawn().unwrap())).finish().ok();
        serde_json::from_str::<serde_json::Value>(&done.out).unwrap()["lock"].as_str().unwrap().to_owned()
    };
    let uri = || format!("{}?client=uri&farm=north", shell.store);
    assert_eq!(lock(&[], None, shell.store.clone()), "DC#local#dlm#x");
    assert_eq!(lock(&[], None, uri()), "DC#north#uri#x");
    assert_eq!(lock(&[], Some("var"), uri()), "DC#north#var#x");
    assert_eq!(lock(&["--client", "flag", "--farm", "f"], Some("var"), uri()), "DC#f#flag#x");
    assert_eq!(shell.json(&["show", "--json", "--level", "xdc", "x"])["lock"], "XDC#dlm#x");
}

#[test]
fn help_tells_of_every_command_and_status() {
    let shell = Shell::new();
    let help = shell.run(&["--help"]).ok().out;
    for command in ["run", "elect", "acquire", "renew", "release", "show", "latch", "init", "doctor", "demo"]
    {
        assert!(help.lines().any(|line| line.starts_with(&format!("  {command} "))), "{command}: {help}");
        let own = shell.run(&[command, "--help"]).ok().out;
        assert!(own.contains("Usage: dlm") && own.contains("--store"), "{own}");
    }
    for status in ["64", "66", "69", "70", "73", "74", "75", "77", "78", "128"] {
        assert!(help.contains(status), "{status}");
    }
    assert!(!help.contains("__"), "hidden commands show: {help}");
    let run = shell.run(&["run", "--help"]).ok().out;
    for word in ["DLM_LOCK", "DLM_FENCE", "DLM_DEADLINE_MS", "kill", "TERM", "--no-wait"] {
        assert!(run.contains(word), "{word}");
    }
    assert!(shell.run(&["--version"]).ok().out.starts_with("dlm "));
}

#[test]
fn a_reader_that_has_gone_is_no_panic() {
    let shell = Shell::new();
    let cases: &[&[&str]] =
        &[&["--help"], &["show", "x"], &["show", "--json", "x"], &["init"], &["demo", "--seconds", "1"]];
    for args in cases {
        let mut child = shell.dlm(args).spawn().unwrap();
        drop(child.stdout.take());
        let done = super::Running(Some(child)).finish();
        assert_eq!((done.status.code(), done.err.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn a_closed_error_output_is_no_panic() {
    let shell = Shell::new();
    let mut child = shell.dlm(&["show", ""]).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(super::Running(Some(child)).finish().status.code(), Some(64));
}

#[test]
fn a_full_disk_is_told() {
    let shell = Shell::new();
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let child = shell.dlm(&["show", "x"]).stdout(full()).spawn().unwrap();
    super::Running(Some(child)).finish().fails_with(70);
}

#[test]
fn the_doctor_tells_of_the_store_in_lines_or_in_json() {
    let shell = Shell::new();
    let told = shell.run(&["doctor"]).ok().out;
    let mut lines = told.lines();
    assert_eq!(lines.next(), Some(shell.store.as_str()), "{told}");
    assert!(lines.all(|line| line.starts_with("OK    ")), "{told}");
    let told = shell.json(&["--json", "doctor"]);
    assert_eq!((&told["store"], &told["grade"]), (&shell.store.as_str().into(), &"OK".into()));
    assert!(told["findings"].as_array().unwrap().iter().any(|diagnostic| diagnostic["topic"] == "a lock"));
    let down = ["--store", "hbase+thrift://127.0.0.1:1/table", "doctor"];
    let down = shell.run(&down);
    assert!(down.out.lines().any(|line| line.starts_with("FAIL  reach: ")), "{}", down.out);
    assert_eq!(down.status.code(), Some(78));
}

/// A client library that `dlm` uses may log many lines about a failed connection.
#[test]
fn a_store_that_is_down_is_told_in_one_line() {
    for store in ["hbase://127.0.0.1:1/t?timeout=100ms", "aerospike://127.0.0.1:1/test/t?timeout=100ms"] {
        let args = ["--store", store, "show", "--level", "xdc", "x"];
        Shell::new().run(&args).fails_with(69);
    }
}

#[test]
fn init_makes_the_store_and_may_be_repeated() {
    let shell = Shell::new();
    for _ in 0..2 {
        assert_eq!(shell.run(&["init"]).ok().out, format!("{} is ready\n", shell.store));
    }
    assert_eq!(shell.json(&["--json", "init"])["store"], shell.store.as_str());
}
