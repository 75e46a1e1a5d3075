//go:build cgo

package dlm

import "time"

// This file remembers locks that a goroutine of this process acquired a short time ago while nobody queued behind it.
// Such a goroutine leaves no line. In a loop it could still keep the lock from other processes.
//
// The rule is that of src/wait/fairness.rs, so services in Go and in Rust yield to each other.

// loopQuantum is for how many retry intervals one goroutine may acquire and release a lock in a loop. Then it yields
// for one interval. A process cannot see whether another one wants the lock, so a loop that is alone yields too and
// loses a fiftieth of its time. Others acquire the lock before their wait ends, which is 90 intervals by default.
const loopQuantum = 50

// quantumGap divides a retry interval into gaps. A quantum ends when the lock was free for one gap, because other
// processes then find it free now and then.
const quantumGap = 10

// recentMax is how many names are kept. Loops over more names at the same time do not yield.
const recentMax = 32

// recent holds the names without a line, the oldest first. The mutex of the queue guards it.
type recent struct {
	entries []recentEntry
}

type recentEntry struct {
	name Name
	past past
}

// past is what is known to the goroutine that wants the lock next. The zero value means that nothing is known.
type past struct {
	state pastState
	// since is the moment after which no other process can have held the lock.
	since time.Time
	// until is when a released lock is forgotten, or when the yielding ends.
	until time.Time
}

type pastState int

const (
	nothing pastState = iota
	// heldHere: a goroutine of this process has the lock.
	heldHere
	// quantumGoesOn: a goroutine that acquires the lock before until continues the quantum.
	quantumGoesOn
	// yielding: this process leaves the lock to others before until.
	yielding
)

// othersTurn returns when the other processes have had their turn. Each of them asks once per interval. Jitter
// lengthens the interval by up to a tenth, and asking takes some time.
func othersTurn(now time.Time, retry time.Duration) time.Time { return now.Add(retry + retry/5) }

// held records that a goroutine holds the lock, in a quantum that began at since, and that nobody is in line.
func (r *recent) held(name Name, since time.Time) {
	if len(r.entries) == recentMax {
		r.entries = r.entries[:copy(r.entries, r.entries[1:])]
	}
	r.entries = append(r.entries, recentEntry{name, past{state: heldHere, since: since}})
}

func (r *recent) released(name Name, retry time.Duration) {
	at := r.find(name)
	if at < 0 {
		return
	}
	now, of := time.Now(), &r.entries[at].past
	if now.Sub(of.since) > retry*loopQuantum {
		of.state, of.until = yielding, othersTurn(now, retry)
	} else {
		of.state, of.until = quantumGoesOn, now.Add(retry/quantumGap)
	}
}

// take removes the name, because a line is made for it, and returns its past.
func (r *recent) take(name Name) past {
	at := r.find(name)
	if at < 0 {
		return past{}
	}
	found := r.entries[at].past
	r.entries = append(r.entries[:at], r.entries[at+1:]...)
	if found.state != heldHere && !time.Now().Before(found.until) {
		return past{}
	}
	return found
}

// find returns the index of the name, or -1.
func (r *recent) find(name Name) int {
	for at := len(r.entries) - 1; at >= 0; at-- {
		if r.entries[at].name == name {
			return at
		}
	}
	return -1
}
