//go:build cgo

// Package dlm acquires distributed locks in the stores that you already run. A lock is held as a lease.
//
// A lease ends after its TTL unless it is renewed. [Lease.Check], [Lease.Lost] and [Lease.Context] report that it is
// lost. Each grant carries a fence, a number that grows with every grant. A receiver of writes can refuse a fence
// that is lower than one it has seen, and so refuse late writes of a paused holder. Latches are counts that all
// processes see and can wait for. The README and the docs of the repository describe the stores, their options and
// their guarantees. Services in Go, Rust, C, C++ and Java that use one store exclude each other.
//
// # Errors
//
// Errors of this package are of type [*Error]. Test for the cause with [errors.Is] and the Err variables of this
// package, such as [ErrLocked]. When a context ends a call, errors.Is also finds the context's error.
//
// # Waiting
//
// Goroutines that wait for the same lock are in one queue of the library, first in, first out. The queue asks the store
// at the interval of the setting "retry", and at the latest when the holder's lease ends. A release in this process
// passes the lock to the next goroutine at once. A process that keeps a lock busy yields for one interval now and then,
// and leaves the lock to other processes.
//
// A call into C holds an operating system thread while it blocks, so a goroutine that waits parks in Go. One descriptor
// and one goroutine of a manager wake all goroutines that wait for its locks, or for the end of one of its leases. Only the first request of a goroutine at the front is made
// by its own thread. The library's threads, at most 8, make the others.
//
// A goroutine that waits for a latch parks in the runtime's poller on a descriptor of the library. It holds no thread.
//
// One manager runs at most 16 calls at once that acquire locks or use latches, and at most 16 more that renew and
// release. With the threads of the library, it holds about 60 threads at most, for any number of goroutines, even when the store hangs.
//
// Further calls wait for their turn, up to the setting "timeout". Then they fail with [ErrRetriesExhausted], and the
// message says what keeps the calls busy. A part of the store that does not answer cannot use up all 16 calls: at
// most 4 of them are for locks in one region of HBase. At most 8 are for regions that fail, counted together. A
// region fails when its last call failed or the current call has taken more than a second. When a server with many
// regions dies, its regions can keep all calls busy until each of them has failed once.
//
// When its context ends, a call returns at once, even while the store is being asked. The request then continues in
// the background, and a lock that it acquires is released. With a context that cannot end, such as
// [context.Background], a call to the store returns when the store has answered or the setting "timeout" has passed.
//
// # Zero values and nil
//
// The zero values of [Cells], [Changes] and [RowCells] are empty, and can be used. Other types with methods are made by
// functions of this package. The calls of their zero values fail with [ErrInvalid], and so do calls with a nil context, a
// nil option or a nil function. A nil pointer panics in the goroutine that uses it, as everywhere in Go. Where a nil value
// means something, its comment says so.
//
// # Rows
//
// A [Table] is an HBase table of the application. Its rows are created, changed and deleted safely without a lock.
// [Row.Create] reports whether this call created the row. [Row.CompareAndSet] and [Row.Modify] write only if the
// values that were read are unchanged. [Lease.Row] returns a row with a fence: HBase refuses its writes after a later
// holder of the lock has written its fence to the row.
//
// # Building
//
// The package needs cgo and links with libdlm: dynamically, or statically with the build tag dlm_static. The module
// contains the header, and "go mod vendor" copies it too. The linker searches for the library first in the
// repository that contains this package, in target/release, where "cargo build --release --lib --features
// capi,all-stores" puts it. Then it searches its usual directories. CGO_LDFLAGS, for example the output of
// "pkg-config --libs dlm", adds directories before these. A vendored package needs CGO_LDFLAGS unless the library is
// installed. [Open] refuses a library whose DLM_ABI number differs from that of the header.
//
// Debian's libdlm-dev is the library of the kernel's DLM and has the same file name. Where it is installed, name the
// directory of this library in CGO_LDFLAGS.
//
// # Not in this package
//
// The library's locks by id, for the threads of one process, are not available in Go. A goroutine that waits in one
// would hold a thread, and a call to C and back costs more than a [sync.Mutex].
package dlm
