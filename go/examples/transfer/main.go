// Transfer moves money between two accounts in one row, from many goroutines at once and without a lock. Each move is
// applied only if the balances are still those that it has read; otherwise it is computed again. Any number of
// processes may run it on one table.
//
//	transfer TABLE     TABLE: hbase://master:16000/table
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"sync"

	"libdlm.org/dlm"
)

const (
	alice, bob = "d:alice", "d:bob"
	workers    = 8
	moves      = 10
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: transfer hbase://master:16000/table")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string) error {
	table, err := dlm.OpenTable(uri)
	if err != nil {
		return err
	}
	defer table.Close()
	if err := table.CreateIfMissing(ctx, []dlm.Family{{Name: "d"}}); err != nil {
		return err
	}

	// Even if a reply is lost, a move is made exactly once.
	accounts := table.Row("accounts").ExactlyOnce()
	// Of all processes that start at the same time, exactly one creates the accounts.
	created, err := accounts.Create(ctx, new(dlm.Cells).Put(alice, []byte("100")).Put(bob, []byte("100")))
	if err != nil {
		return err
	}
	fmt.Println("opened the accounts:", created)

	var working sync.WaitGroup
	failed := make(chan error, workers)
	for range workers {
		working.Add(1)
		go func() {
			defer working.Done()
			for range moves {
				if err := move(ctx, accounts, rand.IntN(41)-20); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	working.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return err
	}

	cells, err := accounts.Get(ctx)
	if err != nil {
		return err
	}
	a, b, err := balances(cells)
	if err != nil {
		return err
	}
	fmt.Println("the balances add up to", a+b)
	return nil
}

var errPoor = errors.New("the balance is too low")

// move moves the amount from alice to bob, or from bob to alice if it is negative.
func move(ctx context.Context, accounts *dlm.Row, amount int) error {
	_, err := accounts.Modify(ctx, []string{alice, bob}, func(cells *dlm.RowCells) (*dlm.Changes, error) {
		a, b, err := balances(cells)
		if err != nil {
			return nil, err
		}
		if a-amount < 0 || b+amount < 0 {
			return nil, errPoor // the row stays unchanged
		}
		changes := new(dlm.Changes)
		changes.Put(alice, []byte(strconv.Itoa(a-amount)))
		changes.Put(bob, []byte(strconv.Itoa(b+amount)))
		return changes, nil
	})
	if errors.Is(err, errPoor) {
		return nil
	}
	return err
}

func balances(cells *dlm.RowCells) (a, b int, err error) {
	a, errA := strconv.Atoi(string(cells.Value(alice)))
	b, errB := strconv.Atoi(string(cells.Value(bob)))
	return a, b, errors.Join(errA, errB)
}
