//! Stores of other crates, registered in this program. They are opened and refused like the library's stores.

use std::cell::RefCell;
use std::sync::Arc;

use dlm::store::{
    LockStore, MemoryStore, PromiseTopic, Scheme, StoreOption, StoreUri, Verdict, register_scheme, schemes,
};
use dlm::{Code, Error, LockManager, Result};
use dlm_testkit::Scripted;

const OPTIONS: [StoreOption; 3] = [
    StoreOption::new("shelf", "top", "the shelf with the locks"),
    StoreOption::new("pool", "1", "connections"),
    StoreOption::new("pause", "1s", "pause between attempts"),
];

thread_local! {
    /// Arguments of the last [`open`] on this thread: scheme, authority, path, options.
    static SEEN: RefCell<String> = const { RefCell::new(String::new()) };
}

fn open(uri: &mut StoreUri) -> Result<Arc<dyn LockStore>> {
    if uri.path() == "/refused" {
        return Err(uri.invalid("another path"));
    }
    let shelf = uri.take("shelf");
    let (pool, pause) = (uri.take_number("pool", 1, 9)?, uri.take_duration("pause")?);
    SEEN.set(format!("{} {} {} {shelf:?} {pool:?} {pause:?}", uri.scheme(), uri.authority(), uri.path()));
    Ok(Arc::new(MemoryStore::new()))
}

/// Opens a store without reading the options that it lists.
fn careless(_uri: &mut StoreUri) -> Result<Arc<dyn LockStore>> {
    Ok(Arc::new(MemoryStore::new()))
}

dlm::register_store!("linked://host:1/path", &OPTIONS, open);
dlm::register_store!("careless:", &OPTIONS, careless);
// Two crates with the same scheme.
dlm::register_store!("twice:", &[], careless);
dlm::register_store!("twice:", &[], open);

fn refused<T: std::fmt::Debug>(what: Result<T>) -> String {
    let error = what.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    error.chain()
}

#[test]
fn a_store_that_is_linked_in_is_opened_by_its_uri() {
    let manager = LockManager::builder()
        .store_uri("linked://a:1,b:2/x%20y?client=orders&shelf=l%26w&pool=3")
        .option("pause", "5ms")
        .open()
        .unwrap();
    assert_eq!(SEEN.take(), "linked a:1,b:2 /x y Some(\"l&w\") Some(3) Some(5ms)");
    manager.initialize().unwrap();
    let lock = manager.lock("order-42", dlm::Level::Xdc).unwrap();
    assert!(lock.try_acquire().unwrap().release().unwrap());
    dlm::store::open("linked:only/a/path").unwrap();
    assert_eq!(SEEN.take(), "linked  only/a/path None None None");
}

#[test]
fn a_store_that_is_registered_by_a_call_is_opened_too() {
    assert!(refused(LockManager::open("called:?client=a")).contains("store scheme \"called\""));
    register_scheme(Scheme::new("called:", &[], open)).unwrap();
    LockManager::open("called:?client=a").unwrap();
    let listed: Vec<_> = schemes().iter().map(Scheme::form).collect();
    assert!(listed.contains(&"called:") && listed.contains(&"linked://host:1/path"), "{listed:?}");
    assert_eq!(listed[0], "memory:");
    assert!(listed[listed.iter().position(|form| *form == "called:").unwrap()..].is_sorted(), "{listed:?}");
}

#[test]
fn options_are_refused_before_the_store_is_opened_and_say_what_there_is() {
    let alone = refused(dlm::store::open("linked://h:1/refused?tll=5s"));
    assert!(alone.ends_with("one of shelf, pool, pause"), "{alone}");
    let managed = refused(LockManager::open("linked://h:1/refused?client=a&tll=5s"));
    assert!(
        managed.contains("one of client, farm, ttl") && managed.ends_with("shelf, pool, pause"),
        "{managed}"
    );
    let managers = refused(dlm::store::open("linked://h:1/refused?ttl=5s"));
    assert!(managers.contains("it is a setting of a manager"), "{managers}");
    let number = refused(dlm::store::open("linked://h:1?pool=10"));
    assert!(number.contains("a whole number from 1 to 9"), "{number}");
    let twice = refused(dlm::store::open("linked://h:1?pool=1&pool=1"));
    assert!(twice.contains("each option once"), "{twice}");
}

/// Such an option would be documented and have no effect.
#[test]
fn an_option_that_is_listed_and_not_read_is_told_to_whoever_wrote_the_store() {
    let error = dlm::store::open("careless:?pool=5").unwrap_err();
    assert_eq!(error.code(), Code::InternalError);
    assert_eq!(error.to_string(), "the store careless: lists the option pool but did not read it");
    dlm::store::open("careless:").unwrap();
}

#[test]
fn what_cannot_be_a_scheme_is_refused() {
    const TTL: &[StoreOption] = &[StoreOption::new("shelf", "", ""), StoreOption::new("ttl", "", "")];
    const TWO: &[StoreOption] = &[StoreOption::new("shelf", "", ""), StoreOption::new("shelf", "", "")];
    const EMPTY: &[StoreOption] = &[StoreOption::new("", "", "")];
    const SIGNS: &[StoreOption] = &[StoreOption::new("a=b", "", "")];
    let name = "lower-case letters";
    for (form, options, said) in [
        ("", &[][..], name),
        ("nothing", &[], name),
        (":", &[], name),
        ("Upper:", &[], name),
        ("1st:", &[], name),
        ("a b:", &[], name),
        ("é:", &[], name),
        ("memory:", &[], "the library has a store"),
        ("embedded:elsewhere", &[], "the library has a store"),
        ("hbase+thrift://x", &[], "the library has a store"),
        ("aerospike:", &[], "the library has a store"),
        ("linked:", &[], "registered already"),
        ("fine:", TTL, "every manager has"),
        ("fine:", TWO, "each of its options once"),
        ("fine:", EMPTY, "an option's key is"),
        ("fine:", SIGNS, "an option's key is"),
    ] {
        let error = refused(register_scheme(Scheme::new(form, options, open)));
        assert!(error.contains(said), "{form}: {error}");
    }
    assert!(schemes().iter().all(|scheme| scheme.name() != "fine"));
    register_scheme(Scheme::new("h2+x.y-z:", &[], open)).unwrap();
    let again = refused(register_scheme(Scheme::new("h2+x.y-z:", &[], open)));
    assert!(again.contains("registered already"), "{again}");
}

/// Neither crate is the right one. The order in which the linker places them must not decide.
#[test]
fn a_scheme_of_two_crates_opens_nothing() {
    let error = refused(dlm::store::open("twice:"));
    assert!(error.contains("\"twice\"") && error.contains("registered already"), "{error}");
}

#[test]
fn an_unknown_scheme_is_answered_with_all_that_there_are() {
    let error = refused(dlm::store::open("redis://host/prefix"));
    let mut forms = vec!["memory:, ", "linked://host:1/path"];
    if cfg!(feature = "embedded") {
        forms.push("embedded: or embedded:/path, ");
    }
    if cfg!(feature = "gateway") {
        forms.push("hbase+thrift://host:9090/table,");
    }
    for form in forms {
        assert!(error.contains(form), "{form}: {error}");
    }
}

#[test]
fn no_secret_of_a_uri_is_in_an_error() {
    for uri in [
        "linked://me:hunter2@host/path",
        "linked://me:hunter2/@host/path",
        "linked://me:hunter2?x@host/path",
        "linked://me?hunter2@host/path",
        "linked:me:hunter2@host",
        "linked://host/refused?shelf=hunter2",
        "linked://host/path?shelf=%zz&pool=hunter",
        "linked://host/path?shelv=hunter2",
        "linked://host/path?shelf=hunter2%zz",
        "linked://host/path?shelf=a&hunter2",
    ] {
        let error = refused(dlm::store::open(uri));
        assert!(!error.contains("hunter2"), "{error}");
        let builder = format!("{:?}", LockManager::builder().store_uri(uri));
        assert!(!builder.contains("hunter2"), "{builder}");
    }
    assert!(refused(dlm::store::open("linked://host/refused?shelf=x")).contains("\"linked://host/refused\""));
}

/// A store of another crate can report its own invalid input.
#[test]
fn a_store_can_refuse_in_the_librarys_words() {
    let error = Error::invalid("shelf", "a\nb", "one line");
    assert_eq!(error.to_string(), r#"shelf "a\nb" is not allowed: one line"#);
}

/// And the report names each promise once, in the order in which people read them.
#[test]
fn a_store_that_promises_nothing_is_reported_as_limited() {
    let open = |strict: bool| {
        let builder = LockManager::builder().store(Arc::new(Scripted::default())).client("c").farm("dc1");
        builder.strict(strict).open().unwrap()
    };
    let promises = open(false).promises(&[]);
    let topics: Vec<_> = promises.iter().map(|promise| promise.topic).collect();
    assert_eq!(topics, PromiseTopic::ALL);
    assert!(promises.iter().all(|promise| promise.verdict == Verdict::Limited), "{promises:?}");
    assert!(!promises.iter().any(|promise| promise.why.contains("strict")), "{promises:?}");
    let strict = open(true).promises(&[]);
    assert!(
        strict.iter().all(|promise| promise.why.ends_with("strict=true refuses a store that fails a check"))
    );
}
