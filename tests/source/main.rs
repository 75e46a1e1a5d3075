//! Tests of this repository: its pages, its examples, its dependencies and the structure of its source.

mod fencing_http;
mod fencing_postgres;
mod hbase_examples;
mod side_by_side;
mod source_dependencies;
#[cfg(feature = "cli")]
mod source_pages;
mod source_summary;
mod source_tree;
