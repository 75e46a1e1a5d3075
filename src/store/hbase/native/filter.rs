//! Conditions on several columns of a row, built from HBase's filters. Latches and applications' rows use them.
//!
//! A filter condition holds if the filter passes at least one cell of the row. So it never holds for a row without
//! cells. A condition that requires only a missing cell must be a plain comparison instead.

use prost::Message;

use super::messages::{BinaryComparator, Comparable, Comparator, EQUAL, Filter, LESS, NOT_EQUAL};

pub(super) const COMPARATOR: &str = "org.apache.hadoop.hbase.filter.BinaryComparator";
const PREFIX_COMPARATOR: &str = "org.apache.hadoop.hbase.filter.BinaryPrefixComparator";
const MUST_PASS_ALL: i32 = 1;
/// `CompareType.NO_OP`.
const NO_OP: i32 = 6;

#[derive(Clone, PartialEq, Message)]
struct SingleColumnValueFilter {
    #[prost(bytes = "vec", tag = "1")]
    family: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    qualifier: Vec<u8>,
    /// An `Option`, because the field is required and a plain 0 (LESS) would not be encoded.
    #[prost(int32, optional, tag = "3")]
    compare: Option<i32>,
    #[prost(message, optional, tag = "4")]
    comparator: Option<Comparator>,
    #[prost(bool, tag = "5")]
    filter_if_missing: bool,
    #[prost(bool, tag = "6")]
    latest_version_only: bool,
}

#[derive(Clone, PartialEq, Message)]
struct FilterList {
    #[prost(int32, tag = "1")]
    operator: i32,
    #[prost(message, repeated, tag = "2")]
    filters: Vec<Filter>,
}

#[derive(Clone, PartialEq, Message)]
struct MultipleColumnPrefixFilter {
    #[prost(bytes = "vec", repeated, tag = "1")]
    sorted_prefixes: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct CompareFilter {
    #[prost(int32, tag = "1")]
    compare: i32,
}

#[derive(Clone, PartialEq, Message)]
struct DependentColumnFilter {
    #[prost(message, optional, tag = "1")]
    compare: Option<CompareFilter>,
    #[prost(bytes = "vec", tag = "2")]
    family: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    qualifier: Vec<u8>,
}

/// A condition on one column, as part of a filter.
#[derive(Clone)]
pub(super) struct FilterTest {
    family: Vec<u8>,
    qualifier: Vec<u8>,
    compare: i32,
    comparator: &'static str,
    with: Vec<u8>,
    /// Whether the condition holds if the column is missing.
    missing: bool,
}

impl FilterTest {
    /// The cell exists and is not empty.
    pub(super) fn some(family: &[u8], qualifier: &[u8]) -> FilterTest {
        FilterTest::new((family, qualifier), NOT_EQUAL, COMPARATOR, b"", false)
    }

    /// The cell does not exist, or it is empty.
    pub(super) fn none(family: &[u8], qualifier: &[u8]) -> FilterTest {
        FilterTest::new((family, qualifier), EQUAL, COMPARATOR, b"", true)
    }

    /// The cell exists and has this value.
    pub(super) fn is(family: &[u8], qualifier: &[u8], value: &[u8]) -> FilterTest {
        FilterTest::new((family, qualifier), EQUAL, COMPARATOR, value, false)
    }

    /// The cell does not exist. Every value begins with the empty prefix, so no cell passes.
    pub(super) fn missing(family: &[u8], qualifier: &[u8]) -> FilterTest {
        FilterTest::begins_not(family, qualifier, b"")
    }

    /// The cell exists, and its value sorts before `with`.
    pub(super) fn below(family: &[u8], qualifier: &[u8], with: &[u8]) -> FilterTest {
        FilterTest::new((family, qualifier), LESS, COMPARATOR, with, false)
    }

    /// The cell exists, and its value does not begin with `with`.
    pub(super) fn there_and_begins_not(family: &[u8], qualifier: &[u8], with: &[u8]) -> FilterTest {
        FilterTest::new((family, qualifier), NOT_EQUAL, PREFIX_COMPARATOR, with, false)
    }

    /// The cell does not exist, or its value does not begin with `with`.
    pub(super) fn begins_not(family: &[u8], qualifier: &[u8], with: &[u8]) -> FilterTest {
        FilterTest::new((family, qualifier), NOT_EQUAL, PREFIX_COMPARATOR, with, true)
    }

    fn new(
        (family, qualifier): (&[u8], &[u8]),
        compare: i32,
        comparator: &'static str,
        with: &[u8],
        missing: bool,
    ) -> FilterTest {
        FilterTest {
            family: family.to_vec(),
            qualifier: qualifier.to_vec(),
            compare,
            comparator,
            with: with.to_vec(),
            missing,
        }
    }

    fn filter(&self) -> Filter {
        let comparator = BinaryComparator { comparable: Some(Comparable { value: Some(self.with.clone()) }) };
        named(
            "SingleColumnValueFilter",
            &SingleColumnValueFilter {
                family: self.family.clone(),
                qualifier: self.qualifier.clone(),
                compare: Some(self.compare),
                comparator: Some(Comparator {
                    name: self.comparator.into(),
                    serialized: comparator.encode_to_vec(),
                }),
                filter_if_missing: !self.missing,
                latest_version_only: true,
            },
        )
    }
}

/// Builds the filter for "all tests hold". The server reads only the columns that begin with a tested qualifier.
pub(super) fn all(tests: &[FilterTest]) -> Filter {
    named("FilterList", &FilterList { operator: MUST_PASS_ALL, filters: filters(tests) })
}

/// Builds the same filter, but it passes only cells with the timestamp of the first test's cell, which must exist.
/// The server gives a Put under the condition a timestamp that is not older than the first cell that passes.
pub(super) fn all_stamped_as_the_first(tests: &[FilterTest]) -> Filter {
    let mut filters = filters(tests);
    filters.extend(tests.first().map(|first| stamped_as(&first.family, &first.qualifier)));
    named("FilterList", &FilterList { operator: MUST_PASS_ALL, filters })
}

fn filters(tests: &[FilterTest]) -> Vec<Filter> {
    let columns = tests.iter().map(|test| test.qualifier.clone()).collect();
    let mut filters = vec![columns_beginning(columns)];
    filters.extend(tests.iter().map(FilterTest::filter));
    filters
}

/// Builds a filter that passes the cells with the timestamp of this column's cell. It ignores the value. It drops
/// the other cells only at the end of the row, so the other filters still see them
/// (`DependentColumnFilter.filterRowCells`).
fn stamped_as(family: &[u8], qualifier: &[u8]) -> Filter {
    let compare = Some(CompareFilter { compare: NO_OP });
    let (family, qualifier) = (family.to_vec(), qualifier.to_vec());
    named("DependentColumnFilter", &DependentColumnFilter { compare, family, qualifier })
}

/// Builds a filter that passes the columns that begin with one of these prefixes.
pub(super) fn columns_beginning(mut prefixes: Vec<Vec<u8>>) -> Filter {
    prefixes.sort_unstable();
    named("MultipleColumnPrefixFilter", &MultipleColumnPrefixFilter { sorted_prefixes: prefixes })
}

fn named(class: &str, filter: &impl Message) -> Filter {
    Filter { name: format!("org.apache.hadoop.hbase.filter.{class}"), serialized: filter.encode_to_vec() }
}
