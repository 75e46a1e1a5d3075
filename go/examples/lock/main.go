// Lock takes a lock, does its work while it has it, and gives it back. Interrupt it while it waits or works.
//
//	lock [STORE]     STORE: embedded: (default), hbase://master:16000/table, ...
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"libdlm.org/dlm"
)

func main() {
	store := "embedded:"
	if len(os.Args) > 1 {
		store = os.Args[1]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	switch err := run(ctx, store); {
	case errors.Is(err, dlm.ErrLocked):
		fmt.Println(err) // says who holds it
	case err != nil:
		log.Fatal(err)
	}
}

func run(ctx context.Context, store string) (err error) {
	manager, err := dlm.Open(store, dlm.Client("order-service"), dlm.Farm("dc1"))
	if err != nil {
		return err
	}
	defer manager.Close()
	if err := manager.Initialize(ctx); err != nil {
		return err
	}

	// Held for 30 s unless renewed; waits for it for 5 s.
	lease, err := manager.Lock(ctx, dlm.DC("order-42"), dlm.TTL(30*time.Second), dlm.Wait(5*time.Second))
	if err != nil {
		return err
	}
	// Not with ctx: the lock is given back also when that is over.
	defer func() { err = errors.Join(err, lease.Release()) }()

	// What is done with this context stops when the lease is lost.
	working, done := lease.Context(ctx)
	defer done()
	for step := range 3 {
		// Before each step that needs the lock: nanoseconds, no I/O.
		if err := lease.Check(); err != nil {
			return err
		}
		if err := write(working, lease.Fence(), step); err != nil {
			return err
		}
		if err := lease.Renew(ctx); err != nil {
			return err
		}
	}
	return nil
}

// write stands for a call to a service that refuses fences lower than it has seen.
func write(ctx context.Context, fence uint64, step int) error {
	select {
	case <-time.After(10 * time.Millisecond):
		fmt.Printf("step %d written with fence %d\n", step, fence)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
