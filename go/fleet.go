//go:build cgo

package dlm

import (
	"context"
	"iter"
	"runtime"
	"time"
)

// Full returns the name of a lock by its full name, such as "XDC#order-service#order-42", which may be one of another
// client. It is for tools that look after the locks of a fleet. A latch has no such name.
func Full(fullName string) Name { return Name{fullName, levelFull} }

// ListedLock is a lock in a list.
type ListedLock struct {
	// FullName is the full name of the lock, for [Full]. For a record without a name it says which record it is.
	FullName string
	// Named is false for a record that does not contain the name of its lock: one of the Java library in Aerospike.
	Named bool
	// Inspection says who holds the lock. Its fence is 0 unless the store has it in the same record.
	Inspection
}

// Locks lists the locks of the store, of all clients, whose full names begin with prefix; "" lists all. With heldOnly it
// leaves out free locks that the store still remembers. It reads a page when it needs one, and ends after an error.
//
// The list is no snapshot. A lock that is held all the time is listed exactly once, and one that is free all the time is
// not listed as held. It fails with the errors of [Manager.Inspect], and with [ErrInvalid] for a store that cannot list
// its locks.
func (m *Manager) Locks(ctx context.Context, prefix string, heldOnly bool) iter.Seq2[ListedLock, error] {
	return func(yield func(ListedLock, error) bool) {
		question := question{m.asking, everywhere, m.timeout, "listing locks"}
		for after := ""; ; {
			page, err := answerTo(ctx, question, false, func() (lockPage, error) {
				defer runtime.KeepAlive(m)
				return listLocks(m.handle, prefix, heldOnly, after)
			})
			if err != nil {
				yield(ListedLock{}, err)
				return
			}
			for _, lock := range page.locks {
				if !yield(lock, nil) {
					return
				}
			}
			if after = page.next; after == "" {
				return
			}
		}
	}
}

// Seen is what [Manager.See] has seen of a lock.
type Seen struct {
	// Inspection says who holds the lock.
	Inspection
	manager *Manager
	name    Name
	handle  seenHandle
}

// See reads who holds the lock, for [Seen.Break]. It fails with the errors of [Manager.Inspect].
func (m *Manager) See(ctx context.Context, name Name) (*Seen, error) {
	question := question{m.asking, everywhere, m.timeout, "inspecting " + name.String()}
	return answerTo(ctx, question, false, func() (*Seen, error) {
		defer runtime.KeepAlive(m)
		handle, inspection, err := seeLock(m.handle, name)
		if err != nil {
			return nil, err
		}
		seen := &Seen{inspection, m, name, handle}
		runtime.AddCleanup(seen, freeSeen, handle)
		return seen, nil
	})
}

// Broken is the result of [Seen.Break].
type Broken struct {
	// IsBroken is false if the grant that was seen is over. Then nothing was changed.
	IsBroken bool
	// Fence is above the fence of the old holder, for the receivers of its writes. It is 0 if nothing was broken, if fencing
	// is switched off, if another process acquired the lock first, or if the store failed after the break. In the last two
	// cases the fence of the next grant is above the old holder's.
	Fence uint64
	// IsRecorded says whether the history of the lock has an entry for the break. If not, the old holder finds its lease lost
	// without a reason.
	IsRecorded bool
}

// Break breaks the lock: it takes it from the holder that was seen, and from no other. It is for an operator, and a holder
// that does not release the lock and cannot be reached. The reason is recorded in the history of the lock, for
// the holder: 1 to 255 bytes without control characters.
//
// The old holder may go on working until it renews or releases its lease. That fails with [ErrLost], and the message says
// who broke the lock and why. Only receivers that compare fences are safe from it.
//
// It fails with [ErrInvalid] if the lock was free, with [ErrInDoubt] if the lock may or may not be broken, and with the
// errors of [Manager.Inspect].
func (s *Seen) Break(ctx context.Context, reason string) (Broken, error) {
	if s.manager == nil {
		return Broken{}, unmade("Seen", "See")
	}
	question := question{s.manager.asking, everywhere, s.manager.timeout, "breaking " + s.name.String()}
	return answerTo(ctx, question, true, func() (Broken, error) {
		defer runtime.KeepAlive(s)
		return breakLock(s.handle, reason)
	})
}

// Waiters says who waits for a lock, as far as its holder knows.
type Waiters struct {
	// Threads is the number of acquisitions that wait in the holder's process.
	Threads int
	// Processes is the number of other processes that wait. It stops at 40.
	Processes int
	// Longest is the time that one of them has waited longest, in whole milliseconds. It is 0 if nobody waits.
	Longest time.Duration
}

// Waiting asks the holder of the lock who waits for it. The result is nil if the lock is free, or if the holder has no
// notices (the option "notices") or does not answer within 200 ms. It is only a hint: processes without notices wait
// unseen, and a datagram can be forged. It fails with the errors of [Manager.Inspect].
func (m *Manager) Waiting(ctx context.Context, name Name) (*Waiters, error) {
	question := question{m.asking, m.identity.lockRegion(name), m.timeout, "asking who waits for " + name.String()}
	return answerTo(ctx, question, false, func() (*Waiters, error) {
		defer runtime.KeepAlive(m)
		return askWaiting(m.handle, name)
	})
}

// HistoryEntry is something that happened to a lock.
type HistoryEntry struct {
	// Kind is "acquired", "released", "lost", "broken", "not broken" or "mode changed". Later versions may add others.
	Kind string
	// At is when it happened, by the clock of the process that wrote the entry.
	At time.Time
	// Fence is the fence of the grant, or 0.
	Fence uint64
	// Took is how long the caller waited ("acquired"), or for how long the lock was held ("released", "lost"; "mode changed":
	// in the mode before); otherwise -1.
	Took time.Duration
	// Text says why a lock was broken or lost.
	Text string
	// By describes the process that wrote the entry, and Victim the holder of a lock that was broken.
	By, Victim string
	// Mode is how the lock is or was held: 0 exclusive, 1 shared, 2 update, 3 a permit of a semaphore. Later versions may add others. ModeBefore is how
	// it was held before, for "mode changed".
	Mode, ModeBefore int
}

// History returns the newest entries of the lock's history that are not older than since, the newest first, and of them as
// many as most says: up to 256, which is also the limit for a higher number. The zero time stands for any age. Entries are
// there only if the holders' managers have the option "history", except those about breaks. It fails with the errors of
// [Manager.Inspect], and with [ErrInvalid] if the store keeps no history.
func (m *Manager) History(ctx context.Context, name Name, since time.Time, most int) ([]HistoryEntry, error) {
	question := question{m.asking, everywhere, m.timeout, "reading the history of " + name.String()}
	return answerTo(ctx, question, false, func() ([]HistoryEntry, error) {
		defer runtime.KeepAlive(m)
		return readHistory(m.handle, name, since, most)
	})
}
