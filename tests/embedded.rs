//! The contract over the embedded store: every handle opens the directory anew.
#![cfg(feature = "embedded")]

#[macro_use]
mod contract;
mod support {
    pub(crate) mod patience;
    pub(crate) mod spy;
}

fn site(test: &str) -> contract::Site {
    let directory = tempfile::tempdir().unwrap();
    contract::Site::new(test, 400, move || {
        dlm::store::open(&format!("embedded:{}", directory.path().display())).unwrap()
    })
}

contract!(site);
latch_contract!(site);
