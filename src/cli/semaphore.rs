//! `dlm semaphore`: shows a semaphore, and changes how many permits it has.

use dlm::Holder;
use serde_json::json;

use crate::cli::args::{self, Global};
use crate::cli::exit::CommandOutcome;
use crate::cli::show::holder_json;
use crate::cli::{names, open, output};

/// `dlm semaphore`
pub(crate) fn semaphore(global: &Global, args: &args::SemaphoreArgs) -> CommandOutcome {
    let manager = open::manager(global, None, "semaphore")?;
    // What is read and changed does not depend on the number of the handle.
    let mut semaphore = open::own_semaphore(&manager, global, args.level, &args.name, 1)?;
    open::reach(&manager, None)?;
    if let Some(permits) = args.resize {
        semaphore = semaphore.resize(permits)?;
    }
    let (size, holders) = (semaphore.size()?, semaphore.holders()?);
    let free = if size.is_some() { Some(semaphore.available()?) } else { None };
    output::show(&if global.json {
        output::json(json!({
            "semaphore": semaphore.name().key(),
            "permits": size,
            "free": free,
            "holders": holders.iter().map(holder_json).collect::<Vec<_>>(),
        }))
    } else {
        let mut rows = vec![("semaphore", names::shown(semaphore.name().key()))];
        match (size, free) {
            (Some(size), Some(free)) => {
                rows.push(("permits", size.to_string()));
                rows.push(("free", free.to_string()));
            }
            _ => rows.push(("permits", "not known: nobody has acquired one for 30 days".into())),
        }
        rows.extend(holders.iter().map(|holder: &Holder| ("held", holder.to_string())));
        rows.iter().map(|(key, value)| format!("{key:<11}{value}")).collect::<Vec<_>>().join("\n")
    })?;
    Ok(0)
}
