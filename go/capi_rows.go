//go:build cgo

package dlm

// The calls of capi.go for rows of tables in HBase.

/*
#include <stdlib.h>
#include "dlm_rows.h"

struct dlm_go_table {
	enum dlm_status status;
	struct dlm_table *table;
	int64_t attempts, timeout_ms;
	struct dlm_error *error;
};

static struct dlm_go_table dlm_go_open_table(const char *uri) {
	struct dlm_go_table to = {0};
	to.status = dlm_abi_check(DLM_ABI, &to.error);
	if (to.status == DLM_OK)
		to.status = dlm_table_open(uri, &to.table, &to.error);
	if (to.status == DLM_OK)
		to.status = dlm_table_setting(to.table, "attempts", &to.attempts, &to.error);
	if (to.status == DLM_OK)
		to.status = dlm_table_setting(to.table, "timeout", &to.timeout_ms, &to.error);
	return to;
}

// An item of an array: a column and a value, or only a name. The bytes of all items are in one other array.
struct dlm_go_item {
	size_t column_size, value_size;
	int64_t ttl_ms, by;
	int32_t kind; // the kind of a change; for a comparison: 1 if there is a value
};

struct dlm_go_row {
	enum dlm_status status;
	int64_t number;
	uint64_t fence;
	bool yes;
	struct dlm_row *row;
	struct dlm_row_cells *cells;
	struct dlm_texts *names;
	struct dlm_error *error;
};

enum dlm_go_row_call {
	DLM_GO_ROW_READ,
	DLM_GO_ROW_READ_COLUMNS,
	DLM_GO_ROW_CREATE,
	DLM_GO_ROW_UPDATE,
	DLM_GO_ROW_PUT,
	DLM_GO_ROW_COMPARE_AND_SET,
	DLM_GO_ROW_INCREMENT,
	DLM_GO_ROW_DELETE_IF,
	DLM_GO_ROW_COMMIT,
	DLM_GO_ROW_RAISE_FENCE,
	DLM_GO_ROW_FENCE,
};

static struct dlm_go_row dlm_go_create_table(struct dlm_table *table, const char *bytes,
                                             const struct dlm_go_item *items, size_t families, size_t splits) {
	struct dlm_go_row to = {0};
	struct dlm_family *family = calloc(families + 1, sizeof *family);
	struct dlm_bytes *split = calloc(splits + 1, sizeof *split);
	for (size_t at = 0; family && split && at < families + splits; at++) {
		if (at < families) // the name ends with NUL
			family[at] = (struct dlm_family){bytes, (uint64_t)items[at].by};
		else
			split[at - families] = (struct dlm_bytes){bytes, items[at].column_size};
		bytes += items[at].column_size;
	}
	to.status = dlm_table_create_if_missing(table, family, families, sizeof *family, split, splits, &to.error);
	free(family);
	free(split);
	return to;
}

static struct dlm_go_row dlm_go_lease_row(const struct dlm_lease *lease, const struct dlm_table *table,
                                          const char *key, size_t size) {
	struct dlm_go_row to = {0};
	to.status = dlm_lease_row(lease, table, key, size, &to.row, &to.error);
	return to;
}

static struct dlm_go_row dlm_go_exactly_once(const struct dlm_row *row) {
	struct dlm_go_row to = {0};
	to.status = dlm_row_exactly_once(row, &to.row, &to.error);
	return to;
}

// Makes a row handle for one call.
static struct dlm_go_row dlm_go_find_row(const struct dlm_table *table, const char *key, size_t size, bool once) {
	struct dlm_go_row to = {0};
	to.status = dlm_table_row(table, key, size, &to.row, &to.error);
	if (to.status == DLM_OK && once) {
		struct dlm_row *plain = to.row;
		to = dlm_go_exactly_once(plain);
		dlm_row_free(plain);
	}
	return to;
}

static void dlm_go_write_row(struct dlm_go_row *to, struct dlm_row *row, int32_t call, const char *bytes,
                             const struct dlm_go_item *items, size_t count) {
	struct dlm_cell *cells = calloc(count + 1, sizeof *cells);
	for (size_t at = 0; cells && at < count; at++) {
		const struct dlm_go_item *of = &items[at];
		const char *value = bytes + of->column_size;
		cells[at] = (struct dlm_cell){bytes, of->column_size, value, of->value_size, of->ttl_ms};
		bytes = value + of->value_size;
	}
	if (call == DLM_GO_ROW_CREATE)
		to->status = dlm_row_create(row, cells, count, sizeof *cells, &to->yes, &to->error);
	else if (call == DLM_GO_ROW_UPDATE)
		to->status = dlm_row_update(row, cells, count, sizeof *cells, &to->yes, &to->error);
	else
		to->status = dlm_row_put(row, cells, count, sizeof *cells, &to->error);
	free(cells);
}

static void dlm_go_read_row(struct dlm_go_row *to, const struct dlm_row *row, const char *bytes,
                            const struct dlm_go_item *items, size_t count) {
	struct dlm_bytes *columns = calloc(count + 1, sizeof *columns);
	for (size_t at = 0; columns && at < count; at++) {
		columns[at] = (struct dlm_bytes){bytes, items[at].column_size};
		bytes += items[at].column_size;
	}
	to->status = dlm_row_get_columns(row, columns, count, &to->cells, &to->error);
	free(columns);
}

static void dlm_go_commit_row(struct dlm_go_row *to, struct dlm_row *row, const struct dlm_row_cells *as_read,
                              const char *bytes, const struct dlm_go_item *items, size_t count) {
	struct dlm_change *changes = calloc(count + 1, sizeof *changes);
	for (size_t at = 0; changes && at < count; at++) {
		const struct dlm_go_item *of = &items[at];
		const char *value = bytes + of->column_size;
		changes[at] = (struct dlm_change){of->kind, bytes, of->column_size, NULL, 0, of->ttl_ms, of->by};
		if (of->kind == DLM_CHANGE_PUT) {
			changes[at].value = value;
			changes[at].value_size = of->value_size;
		}
		bytes = value + of->value_size;
	}
	to->status = dlm_row_commit_if_unchanged(row, as_read, changes, count, sizeof *changes, &to->yes, &to->error);
	free(changes);
}

// `row` is NULL for a row without a handle: this makes one from the key and frees it.
static struct dlm_go_row dlm_go_call_row(const struct dlm_table *table, struct dlm_row *row, const char *key,
                                         size_t size, bool once, const struct dlm_row_cells *as_read, int32_t call,
                                         const char *bytes, const struct dlm_go_item *items, size_t count) {
	struct dlm_go_row to = {0};
	struct dlm_row *made = NULL;
	const char *value = bytes + (count ? items[0].column_size : 0);
	if (!row) {
		to = dlm_go_find_row(table, key, size, once);
		row = made = to.row;
		to.row = NULL;
	}
	if (to.status != DLM_OK)
		return to;
	switch (call) {
	case DLM_GO_ROW_READ:
		to.status = dlm_row_get(row, &to.cells, &to.error);
		break;
	case DLM_GO_ROW_READ_COLUMNS:
		dlm_go_read_row(&to, row, bytes, items, count);
		break;
	case DLM_GO_ROW_CREATE:
	case DLM_GO_ROW_UPDATE:
	case DLM_GO_ROW_PUT:
		dlm_go_write_row(&to, row, call, bytes, items, count);
		break;
	case DLM_GO_ROW_COMPARE_AND_SET: // the first item has the expected value, the second the new one
		to.status = dlm_row_compare_and_set(row, bytes, items[0].column_size, items[0].kind ? value : NULL,
		                                    items[0].value_size, items[1].kind ? value + items[0].value_size : NULL,
		                                    items[1].value_size, &to.yes, &to.error);
		break;
	case DLM_GO_ROW_INCREMENT:
		to.status = dlm_row_increment(row, bytes, items[0].column_size, items[0].by, &to.number, &to.yes, &to.error);
		break;
	case DLM_GO_ROW_DELETE_IF:
		to.status = dlm_row_delete_if(row, bytes, items[0].column_size, value, items[0].value_size, &to.yes, &to.error);
		break;
	case DLM_GO_ROW_COMMIT:
		dlm_go_commit_row(&to, row, as_read, bytes, items, count);
		break;
	case DLM_GO_ROW_RAISE_FENCE:
		to.status = dlm_row_raise_fence(row, &to.error);
		break;
	case DLM_GO_ROW_FENCE:
		to.status = dlm_row_fence(row, &to.fence, &to.names, &to.error);
		break;
	}
	dlm_row_free(made);
	return to;
}

static struct dlm_row_cell dlm_go_cell_at(const struct dlm_row_cells *cells, size_t at) {
	struct dlm_row_cell cell;
	dlm_row_cells_at(cells, at, &cell, sizeof cell);
	return cell;
}
*/
import "C"

import (
	"time"
	"unsafe"
)

type (
	tableHandle = *C.struct_dlm_table
	rowHandle   = *C.struct_dlm_row
	cellsHandle = *C.struct_dlm_row_cells
	rowCall     C.enum_dlm_go_row_call
)

const (
	rowRead          rowCall = C.DLM_GO_ROW_READ
	rowReadColumns   rowCall = C.DLM_GO_ROW_READ_COLUMNS
	rowCreate        rowCall = C.DLM_GO_ROW_CREATE
	rowUpdate        rowCall = C.DLM_GO_ROW_UPDATE
	rowPut           rowCall = C.DLM_GO_ROW_PUT
	rowCompareAndSet rowCall = C.DLM_GO_ROW_COMPARE_AND_SET
	rowIncrement     rowCall = C.DLM_GO_ROW_INCREMENT
	rowDeleteIf      rowCall = C.DLM_GO_ROW_DELETE_IF
	rowCommit        rowCall = C.DLM_GO_ROW_COMMIT
	rowRaiseFence    rowCall = C.DLM_GO_ROW_RAISE_FENCE
	rowFence         rowCall = C.DLM_GO_ROW_FENCE

	changePut    = C.DLM_CHANGE_PUT
	changeAdd    = C.DLM_CHANGE_ADD
	changeDelete = C.DLM_CHANGE_DELETE
)

// items are the arguments of one call: all bytes in one slice, and the sizes of each item.
type items struct {
	bytes []byte
	list  []C.struct_dlm_go_item
}

func (i *items) column(column string) *C.struct_dlm_go_item {
	i.bytes = append(i.bytes, column...)
	i.list = append(i.list, C.struct_dlm_go_item{column_size: C.size_t(len(column))})
	return &i.list[len(i.list)-1]
}

func (i *items) cell(column string, value []byte, ttl time.Duration) {
	item := i.column(column)
	i.bytes = append(i.bytes, value...)
	item.value_size = C.size_t(len(value))
	item.ttl_ms = C.DLM_FOREVER
	if ttl != noTTL {
		item.ttl_ms = C.int64_t(max(millis(ttl), 0)) // the library refuses 0
	}
}

func (i *items) change(change change) {
	switch change.kind {
	case changePut:
		i.cell(change.column, change.value, change.ttl)
	default:
		i.column(change.column).by = C.int64_t(change.by)
	}
	i.list[len(i.list)-1].kind = C.int32_t(change.kind)
}

// compared adds a value to compare or to set. nil means that the cell is absent.
func (i *items) compared(column string, value []byte) {
	item := i.column(column)
	i.bytes = append(i.bytes, value...)
	item.value_size = C.size_t(len(value))
	if value != nil {
		item.kind = 1
	}
}

func (i *items) lent() (*C.char, *C.struct_dlm_go_item, C.size_t) {
	count := C.size_t(len(i.list))
	// The library refuses NULL, so the slices must not be empty.
	i.bytes = append(i.bytes, 0)
	i.list = append(i.list, C.struct_dlm_go_item{})
	return borrowed(i.bytes), unsafe.SliceData(i.list), count
}

func openTable(uri string) (handle tableHandle, attempts int, timeout time.Duration, err error) {
	text, err := lent(uri)
	if err != nil {
		return nil, 0, 0, err
	}
	to := C.dlm_go_open_table(text)
	return to.table, int(to.attempts), time.Duration(to.timeout_ms) * time.Millisecond, failure(to.status, to.error)
}

func freeTable(table tableHandle) { C.dlm_table_free(table) }

func createTable(table tableHandle, families []Family, splits []string) error {
	var with items
	for _, family := range families {
		if _, err := lent(family.Name); err != nil {
			return err
		}
		with.column(family.Name + "\x00").by = C.int64_t(max(family.Versions, 1))
	}
	for _, split := range splits {
		with.column(split)
	}
	bytes, list, _ := with.lent()
	to := C.dlm_go_create_table(table, bytes, list, C.size_t(len(families)), C.size_t(len(splits)))
	return failure(to.status, to.error)
}

func leaseRow(lease leaseHandle, table tableHandle, key string) (rowHandle, error) {
	to := C.dlm_go_lease_row(lease, table, borrowed(append([]byte(key), 0)), C.size_t(len(key)))
	return to.row, failure(to.status, to.error)
}

func exactlyOnce(row rowHandle) (rowHandle, error) {
	to := C.dlm_go_exactly_once(row)
	return to.row, failure(to.status, to.error)
}

func freeRow(row rowHandle) { C.dlm_row_free(row) }

// rowAnswer holds the results of a call. Each call sets only its own.
type rowAnswer struct {
	number int64
	fence  uint64
	lock   string
	yes    bool
	cells  cellsHandle
}

func callRow(r *Row, call rowCall, asRead cellsHandle, with *items) (rowAnswer, error) {
	bytes, list, count := with.lent()
	to := C.dlm_go_call_row(r.table.handle, r.handle, borrowed(append([]byte(r.key), 0)), C.size_t(len(r.key)),
		C.bool(r.once), asRead, C.int32_t(call), bytes, list, count)
	defer C.dlm_texts_free(to.names)
	answer := rowAnswer{number: int64(to.number), fence: uint64(to.fence), yes: bool(to.yes), cells: to.cells}
	if C.dlm_texts_count(to.names) > 0 {
		answer.lock = C.GoString(C.dlm_texts_at(to.names, 0))
	}
	return answer, failure(to.status, to.error)
}

// cellsOf copies the cells that were read into Go memory.
func cellsOf(handle cellsHandle) *RowCells {
	var cells RowCells
	for at := range C.dlm_row_cells_count(handle) {
		cell := C.dlm_go_cell_at(handle, at)
		cells.list = append(cells.list, RowCell{
			Column:  C.GoStringN((*C.char)(cell.column), C.int(cell.column_size)),
			Value:   C.GoBytes(unsafe.Pointer(cell.value), C.int(cell.value_size)),
			Written: time.UnixMilli(int64(cell.written_ms)),
		})
	}
	return &cells
}

func freeCells(handle cellsHandle) { C.dlm_row_cells_free(handle) }
