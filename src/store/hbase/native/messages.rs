//! HBase's protobuf messages, reduced to the fields that this library needs. The decoder skips all other fields,
//! and the server uses its defaults for them. The field numbers are those of HBase 2.4 to 3.0.
//!
//! Enumerations are plain numbers with constants, because an unknown value of a later version must not make a
//! message unreadable.
//!
//! Fields of requests are `Bytes`, so that rows and constants are not copied into each message. That includes strings
//! with constants: protobuf encodes strings and bytes in the same way.

use prost::Message;
use prost::bytes::Bytes;

#[derive(Clone, PartialEq, Message)]
pub(super) struct UserInformation {
    #[prost(string, tag = "1")]
    pub(super) effective_user: String,
}

/// First message on a connection. It names no codec, so all cells are inside the messages.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ConnectionHeader {
    #[prost(message, optional, tag = "1")]
    pub(super) user_info: Option<UserInformation>,
    #[prost(string, tag = "2")]
    pub(super) service_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestHeader {
    #[prost(uint32, optional, tag = "1")]
    pub(super) call_id: Option<u32>,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) method_name: Bytes,
    #[prost(bool, tag = "4")]
    pub(super) request_param: bool,
    #[prost(uint32, tag = "7")]
    pub(super) timeout_ms: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseHeader {
    #[prost(uint32, optional, tag = "1")]
    pub(super) call_id: Option<u32>,
    #[prost(message, optional, tag = "2")]
    pub(super) exception: Option<ExceptionResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExceptionResponse {
    #[prost(string, tag = "1")]
    pub(super) class: String,
    #[prost(string, tag = "2")]
    pub(super) stack: String,
    #[prost(string, optional, tag = "3")]
    pub(super) hostname: Option<String>,
    #[prost(int32, optional, tag = "4")]
    pub(super) port: Option<i32>,
    #[prost(bool, tag = "5")]
    pub(super) do_not_retry: bool,
}

/// An exception inside a `MultiResponse`: its class name, and its message and stack trace as bytes.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NameBytesPair {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

pub(super) const REGION_NAME: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegionSpecifier {
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Column {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) family: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(super) qualifier: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Get {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) row: Bytes,
    #[prost(message, repeated, tag = "2")]
    pub(super) column: Vec<Column>,
    #[prost(message, optional, tag = "4")]
    pub(super) filter: Option<Filter>,
    /// Number of newest versions of each column; 1 if not set.
    #[prost(uint32, optional, tag = "6")]
    pub(super) max_versions: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) region: Option<RegionSpecifier>,
    #[prost(message, optional, tag = "2")]
    pub(super) get: Option<Get>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) result: Option<RowResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RowResult {
    #[prost(message, repeated, tag = "1")]
    pub(super) cell: Vec<Cell>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Cell {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) row: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) family: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) qualifier: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub(super) timestamp: u64,
    #[prost(bytes = "vec", tag = "6")]
    pub(super) value: Vec<u8>,
}

pub(super) const INCREMENT: i32 = 1;
/// `MutationProto.durability`: the server queues the write in its log and does not wait for the sync.
pub(super) const ASYNC_WAL: i32 = 2;
/// `MutationProto.durability`: the server waits until its log is synced.
pub(super) const SYNC_WAL: i32 = 3;
pub(super) const PUT: i32 = 2;
pub(super) const DELETE: i32 = 3;
/// `QualifierValue.delete_type`: all versions of a column up to a timestamp.
pub(super) const DELETE_COLUMN: i32 = 1;
/// The same for all columns of a family, and only for the versions with that timestamp.
pub(super) const DELETE_FAMILY_VERSION: i32 = 3;

#[derive(Clone, PartialEq, Message)]
pub(super) struct MutationProto {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) row: Bytes,
    #[prost(int32, optional, tag = "2")]
    pub(super) kind: Option<i32>,
    #[prost(message, repeated, tag = "3")]
    pub(super) column_value: Vec<ColumnValue>,
    /// Repeated in HBase. One attribute is enough here.
    #[prost(message, optional, tag = "5")]
    pub(super) attribute: Option<Attribute>,
    #[prost(int32, optional, tag = "6")]
    pub(super) durability: Option<i32>,
}

/// An attribute of a mutation. HBase's type for it is `NameBytesPair`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) name: Bytes,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ColumnValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) family: Bytes,
    #[prost(message, repeated, tag = "2")]
    pub(super) qualifier_value: Vec<QualifierValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct QualifierValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) qualifier: Bytes,
    /// An empty value is sent too: an empty cell is a value.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(super) value: Option<Bytes>,
    /// For a Delete: the newest version that it deletes.
    #[prost(uint64, optional, tag = "3")]
    pub(super) timestamp: Option<u64>,
    /// For a Delete: the kind of delete, such as [`DELETE_COLUMN`].
    #[prost(int32, optional, tag = "4")]
    pub(super) delete_type: Option<i32>,
}

/// `CompareType`.
pub(super) const LESS: i32 = 0;
pub(super) const LESS_OR_EQUAL: i32 = 1;
pub(super) const EQUAL: i32 = 2;
pub(super) const NOT_EQUAL: i32 = 3;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Condition {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) row: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) family: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) qualifier: Bytes,
    #[prost(int32, optional, tag = "4")]
    pub(super) compare: Option<i32>,
    #[prost(message, optional, tag = "5")]
    pub(super) comparator: Option<Comparator>,
    /// Replaces column and comparison.
    #[prost(message, optional, tag = "7")]
    pub(super) filter: Option<Filter>,
}

/// A filter of the server: the name of its Java class, and its message, which `filter` defines.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Filter {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) name: Bytes,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) serialized: Vec<u8>,
}

/// A comparator of the server: the name of its Java class, and its message. HBase declares the message as bytes, which
/// are encoded in the same way. Both comparators that are used have this message.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Comparator {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) name: Bytes,
    #[prost(message, optional, tag = "2")]
    pub(super) serialized: Option<BinaryComparator>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BinaryComparator {
    #[prost(message, optional, tag = "1")]
    pub(super) comparable: Option<Comparable>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Comparable {
    /// An empty value is sent too: it compares with an empty cell or no cell.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub(super) value: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MultiRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) region_action: Vec<RegionAction>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegionAction {
    #[prost(message, optional, tag = "1")]
    pub(super) region: Option<RegionSpecifier>,
    #[prost(bool, tag = "2")]
    pub(super) atomic: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) action: Vec<Action>,
    #[prost(message, optional, tag = "4")]
    pub(super) condition: Option<Condition>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Action {
    #[prost(uint32, optional, tag = "1")]
    pub(super) index: Option<u32>,
    #[prost(message, optional, tag = "2")]
    pub(super) mutation: Option<MutationProto>,
    #[prost(message, optional, tag = "3")]
    pub(super) get: Option<Get>,
}

/// One result per region action, in the order of the request.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MultiResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) region_action_result: Vec<RegionActionResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegionActionResult {
    #[prost(message, repeated, tag = "1")]
    pub(super) result_or_exception: Vec<ResultOrException>,
    #[prost(message, optional, tag = "2")]
    pub(super) exception: Option<NameBytesPair>,
    #[prost(bool, optional, tag = "3")]
    pub(super) processed: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResultOrException {
    #[prost(message, optional, tag = "2")]
    pub(super) result: Option<RowResult>,
    #[prost(message, optional, tag = "3")]
    pub(super) exception: Option<NameBytesPair>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScanRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) region: Option<RegionSpecifier>,
    #[prost(message, optional, tag = "2")]
    pub(super) scan: Option<Scan>,
    #[prost(uint32, tag = "4")]
    pub(super) number_of_rows: u32,
    #[prost(bool, tag = "5")]
    pub(super) close_scanner: bool,
    #[prost(uint32, tag = "11")]
    pub(super) limit_of_rows: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Scan {
    #[prost(message, repeated, tag = "1")]
    pub(super) column: Vec<Column>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) start_row: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) stop_row: Vec<u8>,
    #[prost(message, optional, tag = "5")]
    pub(super) filter: Option<Filter>,
    #[prost(uint32, tag = "7")]
    pub(super) max_versions: u32,
    #[prost(bool, tag = "15")]
    pub(super) reversed: bool,
    #[prost(uint32, tag = "17")]
    pub(super) caching: u32,
    #[prost(bool, tag = "21")]
    pub(super) include_start_row: bool,
    #[prost(bool, tag = "22")]
    pub(super) include_stop_row: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScanResponse {
    #[prost(message, repeated, tag = "5")]
    pub(super) results: Vec<RowResult>,
    #[prost(bool, optional, tag = "8")]
    pub(super) more_results_in_region: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TableName {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) namespace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) qualifier: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegionInfo {
    #[prost(uint64, tag = "1")]
    pub(super) region_id: u64,
    #[prost(message, optional, tag = "2")]
    pub(super) table: Option<TableName>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) start_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) end_key: Vec<u8>,
    #[prost(bool, tag = "5")]
    pub(super) offline: bool,
    /// The region was split. Its daughter regions serve its rows.
    #[prost(bool, tag = "6")]
    pub(super) split: bool,
}

/// Value of the column `table:state` in a table's row of hbase:meta.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TableState {
    #[prost(int32, optional, tag = "1")]
    pub(super) state: Option<i32>,
}

pub(super) const TABLE_DISABLED: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServerName {
    #[prost(string, tag = "1")]
    pub(super) host: String,
    #[prost(uint32, tag = "2")]
    pub(super) port: u32,
}

/// Parameter of the methods of `ClientMetaService`: it has no fields.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetActiveMasterResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) server_name: Option<ServerName>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetMetaRegionLocationsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) locations: Vec<RegionLocation>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegionLocation {
    #[prost(message, optional, tag = "1")]
    pub(super) region_info: Option<RegionInfo>,
    #[prost(message, optional, tag = "2")]
    pub(super) server_name: Option<ServerName>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TableSchema {
    #[prost(message, optional, tag = "1")]
    pub(super) table_name: Option<TableName>,
    #[prost(message, repeated, tag = "2")]
    pub(super) attributes: Vec<BytesBytesPair>,
    #[prost(message, repeated, tag = "3")]
    pub(super) column_families: Vec<ColumnFamilySchema>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ColumnFamilySchema {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) name: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub(super) attributes: Vec<BytesBytesPair>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BytesBytesPair {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) first: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) second: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateTableRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) table_schema: Option<TableSchema>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(super) split_keys: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateTableResponse {
    #[prost(uint64, optional, tag = "1")]
    pub(super) proc_id: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetProcedureResultRequest {
    #[prost(uint64, tag = "1")]
    pub(super) proc_id: u64,
}

pub(super) const PROCEDURE_NOT_FOUND: i32 = 0;
pub(super) const PROCEDURE_RUNNING: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetProcedureResultResponse {
    #[prost(int32, tag = "1")]
    pub(super) state: i32,
    #[prost(message, optional, tag = "5")]
    pub(super) exception: Option<ForeignException>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ForeignException {
    #[prost(message, optional, tag = "2")]
    pub(super) generic_exception: Option<GenericException>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GenericException {
    #[prost(string, tag = "1")]
    pub(super) class_name: String,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

/// `ClusterStatusProtos.Option`.
pub(super) const HBASE_VERSION: i32 = 0;

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetClusterStatusRequest {
    #[prost(int32, repeated, packed = "false", tag = "1")]
    pub(super) options: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetClusterStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) cluster_status: Option<ClusterStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClusterStatus {
    #[prost(message, optional, tag = "1")]
    pub(super) hbase_version: Option<VersionFileContent>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct VersionFileContent {
    #[prost(string, tag = "1")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetTableDescriptorsRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) table_names: Vec<TableName>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetTableDescriptorsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) table_schema: Vec<TableSchema>,
}
