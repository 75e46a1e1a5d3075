//! The contract over the embedded store. Every handle opens the directory again.
#![cfg(feature = "embedded")]

use dlm_testkit::contract::Site;

fn site_with(test: &str, option: &'static str) -> Site {
    let directory = tempfile::tempdir().unwrap();
    Site::new(test, 400, move || {
        let store = directory.path().join("store");
        dlm::store::open(&format!("embedded:{}{option}", store.display())).unwrap()
    })
}

fn site(test: &str) -> Site {
    site_with(test, "")
}

dlm_testkit::contract!(site);
dlm_testkit::latch_contract!(site);
dlm_testkit::linger_contract!(site);
dlm_testkit::modes_contract!(site);
dlm_testkit::semaphores_contract!(site);

/// Its file is changed by write(2), that of one user through the memory map.
mod of_a_group {
    fn site(test: &str) -> super::Site {
        super::site_with(test, "?group=on")
    }

    dlm_testkit::contract!(site);
    dlm_testkit::latch_contract!(site);
    dlm_testkit::linger_contract!(site);
    dlm_testkit::modes_contract!(site);
    dlm_testkit::semaphores_contract!(site);
}
