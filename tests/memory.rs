//! The contract over the memory store.

#[macro_use]
mod contract;
mod support {
    pub(crate) mod patience;
    pub(crate) mod spy;
}

use std::sync::Arc;

use dlm::store::{LockStore, MemoryStore};

fn site(test: &str) -> contract::Site {
    let store = Arc::new(MemoryStore::new());
    contract::Site::new(test, 1000, move || store.clone() as Arc<dyn LockStore>)
}

contract!(site);
latch_contract!(site);
