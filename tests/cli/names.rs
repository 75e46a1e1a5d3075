//! Names of locks: what one command prints, every other one takes.

use super::Shell;

/// Returns the first word of the only line of `dlm ls`, with its quotes.
fn listed(shell: &Shell) -> String {
    let out = shell.run(&["ls"]).ok().out;
    let (name, _) = out.trim_end().split_once("  ").unwrap();
    name.to_owned()
}

#[test]
fn every_command_takes_a_name_as_ls_prints_it() {
    let long = format!("a \"b\"\\ {}", "x".repeat(200));
    for id in ["job", &long] {
        let shell = Shell::new();
        let holder = shell.start(&["--client", "orders", "run", "--level", "xdc", id, "--", "sleep", "600"]);
        dlm_testkit::until("it is held", || !shell.run(&["ls", "--held"]).ok().out.is_empty());
        let printed = listed(&shell);
        let key = format!("XDC#orders#{id}");
        for name in [printed.as_str(), &key] {
            let shown = shell.json(&["show", "--json", name]);
            assert_eq!((&shown["held"], &shown["lock"]), (&true.into(), &key.as_str().into()), "{shown}");
            assert!(shell.run(&["show", "--full", name]).ok().out.contains("state held"));
            assert!(shell.run(&["why", name]).ok().out.contains("state held"));
            shell.run(&["history", name]).ok();
            for command in [&["acquire", "--no-wait", name][..], &["run", "--no-wait", name, "--", "true"]] {
                let line = shell.run(command).fails_with(64);
                assert!(line.contains("--client"), "{line}");
                let own = [&["--client", "orders"][..], command].concat();
                shell.run(&own).fails_with(75);
            }
            assert!(shell.run(&["ls", name]).ok().out.starts_with(&printed));
            let line = shell.run(&["elect", name, "--", "true"]).fails_with(64);
            assert!(line.contains("--client"), "{line}");
        }
        let broken = shell.json(&["break", "--json", "--yes", "--reason", "test", &printed]);
        assert_eq!((&broken["broken"], &broken["lock"]), (&true.into(), &key.as_str().into()));
        drop(holder);
    }
    // Its own client, by the full name.
    let shell = Shell::new();
    let show = format!("{} show e", env!("CARGO_BIN_EXE_dlm"));
    let shown = shell.run(&["elect", "DC#local#dlm#e", "--", "sh", "-c", &show]).ok().out;
    assert!(shown.contains("state held"), "{shown}");
    shell.run(&["break", "--full", "job", "--reason", "x"]).fails_with(64);
}

#[test]
fn a_free_lock_whose_name_may_mean_another_one_says_so() {
    let shell = Shell::new();
    let odd = shell.run(&["show", "XDC#orders#c"]).ok().out;
    assert!(odd.contains("note  read as a full name") && odd.contains("DC#local#dlm#XDC#orders#c"), "{odd}");
    let plain = shell.run(&["show", "c"]).ok().out;
    assert!(
        plain.contains("note  the lock of client dlm, the default") && plain.contains("dlm ls"),
        "{plain}"
    );
    for args in [&["show", "--full", "XDC#orders#c"][..], &["--client", "orders", "show", "c"]] {
        assert!(!shell.run(args).ok().out.contains("note"), "{args:?}");
    }
}

#[test]
fn ls_takes_the_beginning_of_a_name_and_says_why_it_prints_nothing() {
    let shell = Shell::new();
    assert!(shell.run(&["ls"]).ok().err.contains("remembers no lock"));
    assert!(
        shell.run(&["ls", "--held", "XDC#"]).ok().err.contains("holds no lock whose full name begins with")
    );
    shell.acquire("order-1");
    shell.run(&["acquire", "--ttl", "10m", "--level", "xdc", "order-2"]).ok();
    shell.run(&["--client", "other", "acquire", "--ttl", "10m", "order-3"]).ok();
    let names = |args: &[&str]| shell.run(args).ok().out.lines().count();
    assert_eq!((names(&["ls", "order-"]), names(&["ls", "DC#"]), names(&["ls", "D"])), (2, 2, 2));
    let nothing = shell.run(&["ls", "orders"]).ok();
    assert!(
        nothing.out.is_empty() && nothing.err.contains("of client dlm whose name begins with \"orders\""),
        "{}",
        nothing.err
    );
    assert_eq!(shell.json(&["top", "--once", "--json", "order-"])["held"], 2);
}

#[test]
fn no_object_has_a_null_and_errors_are_objects_too() {
    let shell = Shell::new();
    shell.acquire("job");
    shell.run(&["latch", "create", "loaded", "1"]).ok();
    let missing = shell.run(&["run", "--json", "x", "--", "/no/such/program"]).ends_with(127).err;
    assert!(missing.starts_with(r#"{"error":"#) && !missing.contains("null"), "{missing}");
    for args in [
        &["show", "job"][..],
        &["show", "free"],
        &["ls"],
        &["why", "job"],
        &["why", "free"],
        &["top", "--once"],
        &["doctor"],
        &["latch", "count", "loaded"],
        &["break", "free", "--reason", "x"],
        &["acquire", "--ttl", "1m", "other"],
    ] {
        let out = shell.run(&[&["--json"], args].concat()).ok().out;
        assert!(!out.contains("null"), "{args:?}: {out}");
        let object: serde_json::Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
        if let Some(name) = object.get("lock") {
            assert!(name.as_str().unwrap().starts_with("DC#local#dlm#"), "{object}");
        }
    }
    let latch = shell.json(&["--json", "latch", "count", "loaded"]);
    assert_eq!((&latch["latch"], &latch["farm"]), (&"dlm#loaded".into(), &"local".into()));
    for (args, code, status) in [
        (&["acquire", "--no-wait", "job"][..], "LOCK_UNAVAILABLE", 75),
        (&["latch", "count", "none"], "NOT_FOUND", 66),
        (&["show", ""], "INVALID_ARGUMENT", 64),
        (&["rnu"], "INVALID_ARGUMENT", 64),
        (&["release", "dlm2.77"], "INVALID_ARGUMENT", 64),
    ] {
        let done = shell.run(&[&["--json"], args].concat()).ends_with(status);
        let error: serde_json::Value = serde_json::from_str(&done.err).unwrap();
        assert_eq!(error["error"]["code"], code, "{error}");
        assert_eq!((error["error"]["status"].as_i64(), done.out.as_str()), (Some(status.into()), ""));
        assert!(!done.err.contains("dlm2.77"), "{}", done.err);
    }
}
