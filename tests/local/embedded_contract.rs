//! The contract over the embedded store. Every handle opens the directory again.
#![cfg(feature = "embedded")]

use dlm_testkit::contract::Site;

fn site(test: &str) -> Site {
    let directory = tempfile::tempdir().unwrap();
    Site::new(test, 400, move || {
        dlm::store::open(&format!("embedded:{}", directory.path().display())).unwrap()
    })
}

dlm_testkit::contract!(site);
dlm_testkit::latch_contract!(site);
dlm_testkit::linger_contract!(site);
dlm_testkit::modes_contract!(site);
dlm_testkit::semaphores_contract!(site);
