//go:build cgo

package dlm

import "time"

// Locks that a goroutine of this process took a short time ago while nobody stood in line behind it. Such a
// goroutine leaves no line. In a loop it would keep the lock from other processes all the same.
//
// The rule is that of src/wait/fairness.rs, so that services in Go and in Rust leave locks to each other.

// loopQuantum is how many retry intervals one goroutine may take and release a lock in a loop. After them it
// yields for one interval. Nobody can see whether anybody else wants the lock, so a loop that is alone
// pays for it as well: a fiftieth of its time. Others get the lock before their wait is over, which is 90
// intervals by default.
const loopQuantum = 50

// quantumGap is a part of an interval. Others find a lock free now and then when it is free for a gap.
const quantumGap = 10

// recentMax is how many names are kept. Loops over more of them at one time do not yield.
const recentMax = 32

// recent has the names without a line, the oldest first. The mutex of the queue guards it.
type recent struct {
	entries []recentEntry
}

type recentEntry struct {
	name Name
	past past
}

// past is what is known for the goroutine that wants the lock next. The zero value is nothing.
type past struct {
	state pastState
	// since is the moment from which nobody else can have had a turn.
	since time.Time
	// until is when a released lock is forgotten, or when the turn of the others ends.
	until time.Time
}

type pastState int

const (
	nothing pastState = iota
	// heldHere: a goroutine of this process has the lock.
	heldHere
	// quantumGoesOn: whoever takes the lock again before until goes on with the quantum.
	quantumGoesOn
	// yielding: this process leaves the lock to others before until.
	yielding
)

// othersTurn is when others have had their turn. Each of them looks once per interval, which jitter lengthens
// by a tenth, and needs some time to ask.
func othersTurn(now time.Time, retry time.Duration) time.Time { return now.Add(retry + retry/5) }

// held notes that a goroutine has the lock, in a quantum that began at since, and that nobody stands in line.
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

// take forgets the name, because a line is made for it.
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

// find is where the name is, and -1 where it is not.
func (r *recent) find(name Name) int {
	for at := len(r.entries) - 1; at >= 0; at-- {
		if r.entries[at].name == name {
			return at
		}
	}
	return -1
}
