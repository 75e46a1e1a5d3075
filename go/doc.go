//go:build cgo

// Package dlm takes distributed locks on the stores you already run, as leases that say when they are lost.
//
// A lock is held as a lease: it ends by itself unless renewed. Each grant carries a fence, a number that grows
// with every holder, so that a receiver can refuse what a paused holder sends too late. Latches are counts that
// all processes see and can wait for. The stores, their options and what each promises are described in the
// README of the repository; services in Go, Rust, C, C++ and Java that use one store exclude each other.
//
// # Waiting
//
// A call into C holds a thread of the operating system for as long as it blocks, so this package waits in Go.
// Goroutines that wait for a lock stand in a line of their process, first come first served. Only the one at
// the front asks the store, in short calls, as often as the setting "retry" says, and no later than the holder's
// lease ends; a release in this process hands over at once, except that a process which keeps a lock busy
// leaves it to others for one interval now and then. Those who wait for a latch, or for the end of a lease, are
// parked in the runtime's poller on a descriptor of the library. At the most 16 calls of one manager that ask
// the store run at once, and 16 more that renew and release; so a manager holds some 50 threads at the worst,
// whatever the number of goroutines, also with a store that hangs.
//
// The other calls wait for their turn, for as long as the setting "timeout" allows. Then they fail with
// [ErrRetriesExhausted], which says what keeps the calls busy. A part of the store that does not answer leaves
// turns to the others: at the most 4 of the 16 calls are for locks in one region of HBase, and at the most 8 for
// all regions together whose last call failed or has taken more than a second so far. When a server with many
// regions dies, its regions can keep all calls busy until each of them has failed once.
//
// A context ends a call at once, also while the store is being asked: that call then goes on, and what it is
// granted is released. With a context that cannot end, such as [context.Background], a call to the store is
// waited for in any case, for as long as the setting "timeout" allows.
//
// # Rows
//
// A [Table] is one of an application's own in HBase. Its rows are made, changed and deleted safely without a lock:
// [Row.Create] tells a row that was made from one that was there, [Row.CompareAndSet] and [Row.Modify] write if what
// was read is unchanged, and [Lease.Row] gives a row whose writes HBase refuses once a later holder of the lock was
// there.
//
// # Building
//
// The package is built with cgo and linked with libdlm, dynamically unless the build tag dlm_static is given.
// The module has the header; "go mod vendor" copies it, too. The library is looked for in the repository that
// this package is a part of (target/release, where "cargo build --release --lib --features capi,all-stores" puts
// it), then where the linker looks. CGO_LDFLAGS, such as "pkg-config --libs dlm" prints, adds places before these; a
// vendored package needs it, unless the library is installed. [Open] refuses a library that was built from a
// header with another number. Debian's libdlm-dev is the library of the kernel's DLM, which has the same name:
// where it is installed, name the directory of ours.
//
// # What is not here
//
// The library's locks by id for the threads of one process are not: goroutines that wait in them would hold
// threads, and the way to C and back costs more than a lock of package sync.
package dlm
