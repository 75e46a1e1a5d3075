use std::sync::{Arc, LazyLock};

use dlm::store::{LockStore, MemoryStore, StoreOption, StoreUri};

static STORE: LazyLock<Arc<MemoryStore>> = LazyLock::new(Arc::default);

const OPTIONS: [StoreOption; 1] = [StoreOption::new("shelf", "top", "where the locks lie")];

fn open(uri: &mut StoreUri) -> dlm::Result<Arc<dyn LockStore>> {
    if uri.path() != "" || uri.authority() != "" {
        return Err(uri.invalid("example: and nothing behind it but options"));
    }
    let _shelf = uri.take("shelf");
    Ok(Arc::clone(&*STORE) as Arc<dyn LockStore>)
}

dlm::register_store!("example:", &OPTIONS, open);
