//! The contract over the memory store.

use std::sync::Arc;

use dlm::store::{LockStore, MemoryStore};
use dlm_testkit::contract::Site;

fn site(test: &str) -> Site {
    let store = Arc::new(MemoryStore::new());
    Site::new(test, 1000, move || store.clone() as Arc<dyn LockStore>)
}

dlm_testkit::contract!(site);
dlm_testkit::latch_contract!(site);
dlm_testkit::linger_contract!(site);
dlm_testkit::modes_contract!(site);
dlm_testkit::semaphores_contract!(site);
