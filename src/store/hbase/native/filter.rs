//! Conditions on several columns of a row, built from HBase's filters. Latches and applications' rows use them.
//!
//! A filter condition holds if the filter passes at least one cell of the row. So it never holds for a row without
//! cells. A condition that requires only a missing cell must be a plain comparison instead.

use prost::Message;
use prost::bytes::Bytes;

use super::bytes::{EMPTY, constant};
use super::messages::{
    BinaryComparator, Comparable, Comparator, EQUAL, Filter, LESS, LESS_OR_EQUAL, NOT_EQUAL,
};

pub(super) const COMPARATOR: &str = "org.apache.hadoop.hbase.filter.BinaryComparator";
const PREFIX_COMPARATOR: &str = "org.apache.hadoop.hbase.filter.BinaryPrefixComparator";
const MUST_PASS_ALL: i32 = 1;
const MUST_PASS_ONE: i32 = 2;
/// `CompareType.NO_OP`.
const NO_OP: i32 = 6;

#[derive(Clone, PartialEq, Message)]
struct SingleColumnValueFilter {
    #[prost(bytes = "bytes", tag = "1")]
    family: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    qualifier: Bytes,
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
    #[prost(bytes = "bytes", repeated, tag = "1")]
    sorted_prefixes: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct CompareFilter {
    /// An `Option`, because the field is required and a plain 0 (LESS) would not be encoded.
    #[prost(int32, optional, tag = "1")]
    compare: Option<i32>,
    #[prost(message, optional, tag = "2")]
    comparator: Option<Comparator>,
}

/// `QualifierFilter` and `ValueFilter`.
#[derive(Clone, PartialEq, Message)]
struct CellCompareFilter {
    #[prost(message, optional, tag = "1")]
    compare: Option<CompareFilter>,
}

#[derive(Clone, PartialEq, Message)]
struct SkipFilter {
    #[prost(message, optional, tag = "1")]
    filter: Option<Filter>,
}

#[derive(Clone, PartialEq, Message)]
struct DependentColumnFilter {
    #[prost(message, optional, tag = "1")]
    compare: Option<CompareFilter>,
    #[prost(bytes = "bytes", tag = "2")]
    family: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    qualifier: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct TimestampsFilter {
    #[prost(int64, repeated, packed = "true", tag = "1")]
    timestamps: Vec<i64>,
}

/// A condition on one column, as part of a filter.
#[derive(Clone)]
pub(super) struct FilterTest {
    family: Bytes,
    qualifier: Bytes,
    compare: i32,
    comparator: &'static str,
    with: Bytes,
    /// Whether the condition holds if the column is missing.
    missing: bool,
}

impl FilterTest {
    /// The cell exists and is not empty.
    pub(super) fn some(family: &Bytes, qualifier: &Bytes) -> FilterTest {
        FilterTest::new((family, qualifier), NOT_EQUAL, COMPARATOR, &EMPTY, false)
    }

    /// The cell does not exist, or it is empty.
    pub(super) fn none(family: &Bytes, qualifier: &Bytes) -> FilterTest {
        FilterTest::new((family, qualifier), EQUAL, COMPARATOR, &EMPTY, true)
    }

    /// The cell exists and has this value.
    pub(super) fn is(family: &Bytes, qualifier: &Bytes, value: &Bytes) -> FilterTest {
        FilterTest::new((family, qualifier), EQUAL, COMPARATOR, value, false)
    }

    /// The cell does not exist. Every value begins with the empty prefix, so no cell passes.
    pub(super) fn missing(family: &Bytes, qualifier: &Bytes) -> FilterTest {
        FilterTest::begins_not(family, qualifier, &EMPTY)
    }

    /// The cell exists, and its value sorts before `with`.
    pub(super) fn below(family: &Bytes, qualifier: &Bytes, with: &Bytes) -> FilterTest {
        FilterTest::new((family, qualifier), LESS, COMPARATOR, with, false)
    }

    /// The cell does not exist, or its value does not sort behind `with`.
    pub(super) fn up_to(family: &Bytes, qualifier: &Bytes, with: &Bytes) -> FilterTest {
        FilterTest::new((family, qualifier), LESS_OR_EQUAL, COMPARATOR, with, true)
    }

    /// The cell exists, and its value does not begin with `with`.
    pub(super) fn there_and_begins_not(family: &Bytes, qualifier: &Bytes, with: &Bytes) -> FilterTest {
        FilterTest::new((family, qualifier), NOT_EQUAL, PREFIX_COMPARATOR, with, false)
    }

    /// The cell does not exist, or its value does not begin with `with`.
    pub(super) fn begins_not(family: &Bytes, qualifier: &Bytes, with: &Bytes) -> FilterTest {
        FilterTest::new((family, qualifier), NOT_EQUAL, PREFIX_COMPARATOR, with, true)
    }

    fn new(
        (family, qualifier): (&Bytes, &Bytes),
        compare: i32,
        comparator: &'static str,
        with: &Bytes,
        missing: bool,
    ) -> FilterTest {
        FilterTest {
            family: family.clone(),
            qualifier: qualifier.clone(),
            compare,
            comparator,
            with: with.clone(),
            missing,
        }
    }

    fn filter(&self) -> Filter {
        named(
            "org.apache.hadoop.hbase.filter.SingleColumnValueFilter",
            &SingleColumnValueFilter {
                family: self.family.clone(),
                qualifier: self.qualifier.clone(),
                compare: Some(self.compare),
                comparator: Some(comparator(self.comparator, &self.with)),
                filter_if_missing: !self.missing,
                latest_version_only: true,
            },
        )
    }
}

/// A cell that a row may have: a filter that passes it.
pub(super) struct CellFilter(Filter);

/// What [`CellFilter::beginning`] requires of the value.
pub(super) enum CellValue {
    Any,
    Begins(Bytes),
}

impl CellFilter {
    /// A cell of this column.
    pub(super) fn column(qualifier: &Bytes) -> CellFilter {
        CellFilter(qualifier_filter(EQUAL, COMPARATOR, qualifier))
    }

    /// An empty cell.
    pub(super) fn empty() -> CellFilter {
        CellFilter(value_filter(EQUAL, COMPARATOR, &EMPTY))
    }

    /// A cell of this column with this value.
    pub(super) fn exactly(qualifier: &Bytes, value: &Bytes) -> CellFilter {
        let filters =
            vec![qualifier_filter(EQUAL, COMPARATOR, qualifier), value_filter(EQUAL, COMPARATOR, value)];
        CellFilter(list(MUST_PASS_ALL, filters))
    }

    /// A cell of a column that begins so.
    pub(super) fn beginning(qualifier: &Bytes, value: CellValue) -> CellFilter {
        let column = qualifier_filter(EQUAL, PREFIX_COMPARATOR, qualifier);
        CellFilter(match value {
            CellValue::Any => column,
            CellValue::Begins(with) => {
                list(MUST_PASS_ALL, vec![column, value_filter(EQUAL, PREFIX_COMPARATOR, &with)])
            }
        })
    }

    /// A cell of a column that begins so and sorts before `below`, with a value that begins so.
    pub(super) fn beginning_below(qualifier: &Bytes, below: Option<&Bytes>, value: &Bytes) -> CellFilter {
        let mut filters = vec![
            qualifier_filter(EQUAL, PREFIX_COMPARATOR, qualifier),
            value_filter(EQUAL, PREFIX_COMPARATOR, value),
        ];
        filters.extend(below.map(|below| qualifier_filter(LESS, COMPARATOR, below)));
        CellFilter(list(MUST_PASS_ALL, filters))
    }
}

/// Builds the filter for "all tests hold, and each cell of the row passes one of these". The server reads the whole row.
pub(super) fn all_and_each_cell(tests: &[FilterTest], cells: Vec<CellFilter>) -> Filter {
    let one = list(MUST_PASS_ONE, cells.into_iter().map(|cell| cell.0).collect());
    let each = named("org.apache.hadoop.hbase.filter.SkipFilter", &SkipFilter { filter: Some(one) });
    let tests = tests.iter().map(FilterTest::filter);
    list(MUST_PASS_ALL, tests.chain([each]).collect())
}

fn qualifier_filter(compare: i32, class: &'static str, with: &Bytes) -> Filter {
    cell_filter("org.apache.hadoop.hbase.filter.QualifierFilter", compare, class, with)
}

fn value_filter(compare: i32, class: &'static str, with: &Bytes) -> Filter {
    cell_filter("org.apache.hadoop.hbase.filter.ValueFilter", compare, class, with)
}

fn cell_filter(filter: &'static str, compare: i32, class: &'static str, with: &Bytes) -> Filter {
    let comparator = Some(comparator(class, with));
    named(filter, &CellCompareFilter { compare: Some(CompareFilter { compare: Some(compare), comparator }) })
}

fn list(operator: i32, filters: Vec<Filter>) -> Filter {
    named("org.apache.hadoop.hbase.filter.FilterList", &FilterList { operator, filters })
}

/// Builds the filter for "all tests hold". The server reads only the columns that begin with a tested qualifier.
pub(super) fn all(tests: &[FilterTest]) -> Filter {
    list(MUST_PASS_ALL, filters(tests))
}

/// Builds the same filter, but it passes only cells with the timestamp of the first test's cell, which must exist.
/// The server gives a Put under the condition a timestamp that is not older than the first cell that passes.
pub(super) fn all_stamped_as_the_first(tests: &[FilterTest]) -> Filter {
    let mut filters = filters(tests);
    filters.extend(tests.first().map(|first| stamped_as(&first.family, &first.qualifier)));
    list(MUST_PASS_ALL, filters)
}

/// Builds the filter for "the test holds for the newest cell, and that cell has this timestamp". An older version of the
/// cell does not pass instead: the server counts versions before it filters (HBASE-17125).
pub(super) fn written_at(test: &FilterTest, written_ms: u64) -> Filter {
    let mut filters = filters(std::slice::from_ref(test));
    let timestamps = vec![i64::try_from(written_ms).unwrap_or(i64::MAX)];
    filters.push(named("org.apache.hadoop.hbase.filter.TimestampsFilter", &TimestampsFilter { timestamps }));
    list(MUST_PASS_ALL, filters)
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
fn stamped_as(family: &Bytes, qualifier: &Bytes) -> Filter {
    let compare = Some(CompareFilter { compare: Some(NO_OP), comparator: None });
    let (family, qualifier) = (family.clone(), qualifier.clone());
    named(
        "org.apache.hadoop.hbase.filter.DependentColumnFilter",
        &DependentColumnFilter { compare, family, qualifier },
    )
}

/// Builds a filter that passes the columns that begin with one of these prefixes.
pub(super) fn columns_beginning(mut prefixes: Vec<Bytes>) -> Filter {
    prefixes.sort_unstable();
    named(
        "org.apache.hadoop.hbase.filter.MultipleColumnPrefixFilter",
        &MultipleColumnPrefixFilter { sorted_prefixes: prefixes },
    )
}

/// Builds a filter that passes the cells of columns that begin so, unless they are empty or their values begin with `unless`.
pub(super) fn filled_beginning(prefix: Bytes, unless: &Bytes) -> Filter {
    let filled = value_filter(NOT_EQUAL, COMPARATOR, &EMPTY);
    let filters =
        vec![columns_beginning(vec![prefix]), filled, value_filter(NOT_EQUAL, PREFIX_COMPARATOR, unless)];
    list(MUST_PASS_ALL, filters)
}

fn named(class: &'static str, filter: &impl Message) -> Filter {
    Filter { name: constant(class), serialized: filter.encode_to_vec() }
}

/// Builds the comparator of this class with the value `with`.
pub(super) fn comparator(class: &'static str, with: &Bytes) -> Comparator {
    let comparable = Some(Comparable { value: Some(with.clone()) });
    Comparator { name: constant(class), serialized: Some(BinaryComparator { comparable }) }
}
