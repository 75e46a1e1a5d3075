// Lock acquires a lock, works while it holds the lock, and releases it. Interrupt it while it waits or works.
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

	// Wait up to 5 s for the lock. The lease lasts 30 s unless it is renewed.
	lease, err := manager.Lock(ctx, dlm.DC("order-42"), dlm.TTL(30*time.Second), dlm.Wait(5*time.Second))
	if err != nil {
		return err
	}
	// Release takes no context: the lock must be released even when ctx has ended.
	defer func() { err = errors.Join(err, lease.Release()) }()

	// Work that uses this context stops when the lease is lost.
	working, done := lease.Context(ctx)
	defer done()
	for step := range 3 {
		// Check before each step that needs the lock. This takes nanoseconds and does no I/O.
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
