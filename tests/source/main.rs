//! What this repository says about itself is true: its pages, its examples and what it is built from.

mod fencing_http;
mod fencing_postgres;
mod hbase_examples;
mod source_dependencies;
#[cfg(feature = "cli")]
mod source_pages;
mod source_tree;
