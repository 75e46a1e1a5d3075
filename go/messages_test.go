//go:build cgo

package dlm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

func init() {
	children["messages"] = func(string) { printMessages() }
}

// printMessages reads lines of a verb, the id of a lock or latch if it needs one, and the URI of a store, with tabs between.
// It prints what the call says: the name of its code, and the message.
func printMessages() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		line := strings.Split(lines.Text(), "\t")
		var failure *Error
		if !errors.As(messageOf(line[0], line[1], line[2]), &failure) {
			failure = new(Error)
		}
		fmt.Printf("%v: %v\n", failure.Code, failure.Message)
	}
}

func messageOf(verb, id, uri string) error {
	m, err := Open(uri)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	if verb == "reach" {
		return m.Reach(context.Background())
	}
	if verb == "count-down" {
		return m.Latch(XDC(id), CountDown).CountDown(context.Background())
	}
	lease, err := m.Lock(context.Background(), XDC(id))
	if err == nil {
		_ = lease.Release()
	}
	return err
}
