//! Says what packages of libdlm contain of others.
//!
//! ```text
//! dlm-generate licences FEATURES TARGET            the licences of all crates that are linked
//! dlm-generate bill-of-materials FEATURES TARGET   these crates in the format CycloneDX 1.5
//! ```
//!
//! FEATURES are those of the package `dlm`, separated by commas, and TARGET is a
//! target of Rust. The output depends on the source only, so that packages can be reproduced.

mod bill_of_materials;
mod crates;
mod licences;

use std::error::Error;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["licences", features, target] => {
            print!("{}", licences::text(&crates::linked(features, target)?)?);
            Ok(())
        }
        ["bill-of-materials", features, target] => {
            println!("{:#}", bill_of_materials::document(&crates::linked(features, target)?));
            Ok(())
        }
        _ => Err("see the comment at the top of .packaging/generate/src/main.rs".into()),
    }
}
